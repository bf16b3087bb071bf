"""The page of all results and its pictures: up to date, and ready for data sets that are not in the gallery yet."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from deepbdc.gallery import load_result
from tests.scripts import ROOT, script

page = script("results", "docs")
SOURCE = ROOT / "gallery" / "cifar_fs" / "conv4"


def test_the_page_is_up_to_date() -> None:
    text = page.PAGE.page.read_text(encoding="utf-8")
    assert page.PAGE.placed(page.page_table()) == text, "run python docs/results.py --write"


def test_the_pictures_are_up_to_date() -> None:
    for section in page.sections():
        with Image.open(ROOT / "docs" / "images" / f"results_{section.name}.png") as picture:
            assert picture.info["Source"] == section.digest, "run python docs/results.py --write"


@pytest.fixture
def gallery(tmp_path: Path) -> Path:
    """A gallery with results of other data sets: those of CIFAR-FS under their names."""
    for data, shots in {"miniimagenet_to_cub": (5,), "cub": (1, 5)}.items():
        folder = tmp_path / data / "conv4"
        folder.mkdir(parents=True)
        for name in ("protonet", "stl_deepbdc", "maml"):
            content = json.loads((SOURCE / f"{name}.json").read_text())
            content["results"] = [result for result in content["results"] if result["shot"] in shots]
            if data != "cub":
                content |= {"trained_on": {"data": "miniimagenet", "classes": 64}}
                del content["seconds"]
            (folder / f"{name}.json").write_text(json.dumps(content))
            shutil.copyfile(SOURCE / f"{name}.yaml", folder / f"{name}.yaml")
    return tmp_path


def test_a_section_of_another_data_set(gallery: Path, tmp_path: Path) -> None:
    cub, across = page.sections(gallery)
    assert [page.title(section) for section in (cub, across)] == [
        "CUB, whole images, Conv4",
        "From miniImageNet to CUB, Conv4",
    ]
    assert [row.name for row in across.rows] == ["stl_deepbdc", "protonet", "maml"], "the best comes first"
    heading, _, first, second, third = page.section_table(across).splitlines()
    assert heading == "| method | ours, 5 shots | minus ProtoNet, 5 shots | published, another network |"
    ours, baseline = (load_result(SOURCE / f"{name}.json").results[1] for name in ("stl_deepbdc", "protonet"))
    compared = ours.compare(baseline)
    assert first.startswith(f"| **stl_deepbdc** | **{ours.mean:.2f} ± {ours.ci95:.2f} (± {ours.ci95_classes:.1f})** |")
    assert f"| +{compared.difference:.2f} ± {compared.ci95:.2f} ★ (± {compared.ci95_classes:.1f}) ★ |" in first
    assert first.endswith("| *80.16* (ResNet-12, DeepBDC paper) |")
    assert "| – | *67.19* (ResNet-12" in second
    assert third.startswith("| maml † |")
    assert "Trained on 64 classes." in page.how(across)
    assert "† = transductive" in page.how(across)
    assert "*64.42 / 81.82* (DeepBDC paper)" in page.section_table(cub), "published with the same network"
    assert "cropped by their boxes" in page.how(cub)

    hours = page.hours([cub, across]).splitlines()
    seconds = sum(json.loads((SOURCE / f"{row.name}.json").read_text())["seconds"] for row in cub.rows)
    assert hours[2:] == [
        f"| CUB, whole images, Conv4 | 3 | {seconds / 3600:.1f} |",
        f"| all |  | {seconds / 3600:.1f} |",
    ]

    script("results_picture", "docs").draw(across, tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.info["Source"] == across.digest


def test_a_network_of_other_classes_says_so(gallery: Path) -> None:
    file = gallery / "miniimagenet_to_cub" / "conv4" / "stl_deepbdc.json"
    content = json.loads(file.read_text()) | {"trained_on": {"data": "miniimagenet->cub", "classes": 100}}
    file.write_text(json.dumps(content))
    across = page.sections(gallery)[1]
    assert "Trained on 64 classes, where a row does not say otherwise." in page.how(across)
    lines = page.section_table(across).splitlines()[2:]
    assert [", trained on 100 classes |" in line for line in lines] == [True, False, False]


def test_conclusions_are_kept(gallery: Path) -> None:
    found = page.sections(gallery)
    empty = "\n".join(page.page_parts(found, ""))
    assert empty.count(page.EMPTY) == 2
    written = empty.replace(page.EMPTY, "Birds are hard.\n\nVery hard.", 1)
    again = "\n".join(page.page_parts(found, written))
    assert again == written


def test_results_of_other_episodes_are_not_paired(gallery: Path) -> None:
    file = gallery / "cub" / "conv4" / "maml.json"
    content = json.loads(file.read_text())
    content["results"][0]["episodes_fingerprint"] = "other"
    file.write_text(json.dumps(content))
    line = next(line for line in page.section_table(page.sections(gallery)[0]).splitlines() if "maml" in line)
    assert line.count("other episodes") == 1


def test_fewer_episodes_are_said_and_paired(gallery: Path) -> None:
    file = gallery / "cub" / "conv4" / "maml.json"
    content = json.loads(file.read_text())
    for result in content["results"]:
        result["accuracies"] = result["accuracies"][:600]
        result["classes"] = result["classes"][:600]
    file.write_text(json.dumps(content))
    line = next(line for line in page.section_table(page.sections(gallery)[0]).splitlines() if "maml" in line)
    maml, baseline = (
        load_result(gallery / "cub" / "conv4" / f"{name}.json").results[0] for name in ("maml", "protonet")
    )
    difference = float((maml.accuracies - baseline.accuracies[:600]).mean())
    assert line.startswith("| maml †")
    assert ", 600 episodes |" in line
    assert f"{difference:+.2f} ± ".replace("-", "−") in line


def test_the_bar_is_named() -> None:
    (section,) = (section for section in page.sections() if section.data == "cifar_fs")
    assert "ConstellationNet *69.3 / 82.7* (Conv4 with attention, leaderboard of November 2022)" in page.others(section)


def test_a_variant_has_only_the_published_numbers_of_its_options() -> None:
    section = next(one for one in page.sections() if one.name == "cub_conv4")
    found = {row.name: page.published_rows(section, row)[1] for row in section.rows}
    assert found["ici"] is None, "what is published is its first step, logistic regression"
    assert getattr(found["ici_inductive"], "name", None) == "Wang et al. LR"
    assert found["meta_deepbdc"] is not None
    assert found["meta_deepbdc_euclidean"] is None
