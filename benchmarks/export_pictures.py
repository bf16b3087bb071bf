"""Write images of some classes of a data set into one folder per class, to try `deepbdc classify` on them.

    python benchmarks/export_pictures.py cifar_fs OUTPUT --data FOLDER
    deepbdc classify OUTPUT/examples OUTPUT/photos --truth

OUTPUT/examples/CLASS holds the examples, OUTPUT/photos/CLASS the images to classify. The names of these folders are the
true classes, which --truth compares with the predictions.
"""

import argparse
from pathlib import Path

import numpy as np

from deepbdc import load_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a data set that 'deepbdc data list' shows, or an .npz file")
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", help="the folder of the prepared data sets")
    parser.add_argument("--split", default="test")
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--examples", type=int, default=5, help="examples per class")
    parser.add_argument("--photos", type=int, default=50, help="images to classify per class")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    dataset = load_dataset(given.name, given.split, root=given.data)
    random = np.random.default_rng(given.seed)
    chosen = sorted(random.permutation(len(dataset.class_names))[: given.classes].tolist())
    for label in chosen:
        indices = random.permutation(np.flatnonzero(dataset.labels.numpy() == label))
        for place, index in enumerate(indices[: given.examples + given.photos].tolist()):
            kind = "examples" if place < given.examples else "photos"
            folder = given.output / kind / dataset.class_names[label]
            folder.mkdir(parents=True, exist_ok=True)
            dataset.image(index).save(folder / f"{index:05}.png")
    print(f"wrote {len(chosen)} classes of {dataset.name} {dataset.split} to {given.output}")


if __name__ == "__main__":
    main()
