import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from deepbdc import FewShotClassifier, create_backbone
from deepbdc.errors import UserError
from deepbdc.own_images.networks import find_embedding
from deepbdc.weight_files import read_weights

WEIGHTS = {"a.weight": torch.arange(4.0), "b": torch.ones(2, 2)}


@pytest.mark.parametrize("form", ["safetensors", "plain", "checkpoint", "parallel"])
def test_weights_in_every_form(form: str, tmp_path: Path) -> None:
    file = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pth")
    if form == "safetensors":
        save_file(WEIGHTS, file)
    else:
        whole = {"module." * (form == "parallel") + name: value for name, value in WEIGHTS.items()}
        torch.save({"state_dict": whole, "epoch": 3} if form == "checkpoint" else whole, file)
    found = read_weights(file)
    assert list(found) == list(WEIGHTS)
    assert all(torch.equal(found[name], value) for name, value in WEIGHTS.items())


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("ran"),))  # type: ignore[return-value]


def test_a_file_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Evil()}, "evil.pth")
    Path("evil.bin").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pth", "evil.bin"):
        with pytest.raises(UserError, match="read safely"):
            read_weights(Path(name))
    assert not Path("ran").exists()


def test_files_without_weights_are_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pth")
    with pytest.raises(UserError, match="holds no weights"):
        read_weights(tmp_path / "a.pth")
    (tmp_path / "b.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="read safely"):
        read_weights(tmp_path / "b.safetensors")
    with pytest.raises(FileNotFoundError):
        read_weights(tmp_path / "c.pth")


def test_a_named_network_with_the_weights_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "conv4.safetensors"
    trained = create_backbone("conv4")
    save_file(trained.state_dict(), file)
    embedding = find_embedding("conv4", None, 32, "cpu", file)
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(embedding.backbone(images), trained.eval()(images))
    examples = [(255 * torch.rand(3, 32, 32)).byte() for _ in range(4)]
    fitted = FewShotClassifier("conv4", weights=file, size=32).fit(examples, ["a", "a", "b", "b"])
    file.unlink()
    again = FewShotClassifier.load(fitted.to_bytes())
    assert (again.predict_proba(examples) == fitted.predict_proba(examples)).all()
    with pytest.raises(UserError, match="given by its name"):
        FewShotClassifier(trained, weights=tmp_path / "other.pth").fit(examples[:1], ["a"])


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_file(create_backbone("conv4", width=2).state_dict(), tmp_path / "wide.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match=r"does not fit conv4: it lacks \d+ of its weights"):
        find_embedding("conv4", None, 32, "cpu", tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="does not fit conv4"):
        find_embedding("conv4", None, 32, "cpu", tmp_path / "wide.safetensors")
