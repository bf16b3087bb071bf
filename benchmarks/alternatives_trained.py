"""The contestants of benchmarks/alternatives.py that train a network: fastai.

    python benchmarks/alternatives_trained.py fastai --network NAME --epochs 20

This program runs in the environment of its package, which need not be that of deepbdc's other dependencies; it only
needs timm and the package of the weights besides. It first prints a line about itself, or why it cannot work. Then it
reads the folders of tasks, one on each line: ``examples/LABEL/FILE`` are the examples, ``queries/FILE`` the pictures to
classify. For each, it prints the labels of the queries, in the order of their names, as a line of JSON.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

import deepbdc.backbones.efficientnet_lite as lite  # before torchvision, which a CPU build of torch refuses otherwise

SIZES = {name: variant.preprocessing(None).input_size for name, variant in lite.VARIANTS.items()}
HALF = (0.5, 0.5, 0.5)
"""The mean and the standard deviation of pixels, with which these networks were trained."""
BATCH = 8
Answer = Callable[[Path], list[int]]


def with_fastai(network: str, epochs: int) -> tuple[str, Answer]:
    """fastai's usual recipe: `vision_learner`, its augmentations, and `fine_tune`."""
    import fastai
    from fastai.vision import all as vision

    weights = {name: value for name, value in lite.imagenet_weights(network).items() if "classifier" not in name}

    def answer(folder: Path) -> list[int]:
        vision.set_seed(0)
        examples = vision.get_image_files(folder / "examples")
        changes = [*vision.aug_transforms(), vision.Normalize.from_stats(HALF, HALF, cuda=False)]
        block = vision.DataBlock(
            blocks=(vision.ImageBlock, vision.CategoryBlock),
            get_items=vision.get_image_files,
            get_y=vision.parent_label,
            splitter=vision.IndexSplitter([]),  # all examples are for training
            item_tfms=vision.Resize(SIZES[network]),
            batch_tfms=changes,
        )
        loaders = block.dataloaders(folder / "examples", bs=min(BATCH, len(examples)), num_workers=0, device="cpu")
        learner = vision.vision_learner(loaders, f"tf_{network}", pretrained=False, normalize=False)
        body = learner.model[0].model
        missing = body.load_state_dict(weights, strict=False)
        assert not missing.missing_keys, missing
        assert not missing.unexpected_keys, missing
        learner.model.to(memory_format=torch.channels_last)  # the same up to rounding, and faster on a CPU
        with learner.no_bar(), learner.no_logging():
            learner.fine_tune(epochs)
            found, _ = learner.get_preds(dl=loaders.test_dl(_queries(folder)))
        return [int(loaders.vocab[place]) for place in found.argmax(dim=1).tolist()]

    return f"fastai {fastai.__version__}, fine_tune({epochs})", answer


def _queries(folder: Path) -> list[Path]:
    return sorted((folder / "queries").iterdir())


PACKAGES = {"fastai": with_fastai}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("--network", default="efficientnet_lite2", choices=SIZES)
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())

    def say(content: Any) -> None:
        print(json.dumps(content), file=answers, flush=True)

    answers = sys.stdout
    with redirect_stdout(sys.stderr):  # what packages print is not an answer
        try:
            title, answer = PACKAGES[given.package](given.network, given.epochs)
        except ImportError as error:
            say({"missing": str(error)})
            return
        say({"title": title})
        for line in sys.stdin:
            say(answer(Path(line.rstrip("\n"))))


if __name__ == "__main__":
    main()
