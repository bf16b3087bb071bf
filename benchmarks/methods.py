"""The latency of all methods on one 5-way task, as in the paper's tables 3 and S-latency.

    python benchmarks/methods.py [--methods NAME ...] [--repeats COUNT] [--output FILE]

Every method has a ResNet-12 at 84 pixels and the options of its miniImageNet recipe. Timed are one test task (5 or 25
support images and 75 queries) and one step of episodic training with the same task. The pass of the images through the
network is the same for nearly all methods. It is timed for itself, so that its noise does not hide the differences, and
each method is timed on feature maps of the same size: the whole is the sum of both. Methods that act inside the network
(MAML, TADAM, ...) are timed as a whole. AA, which needs training images, is left out. All run in turn, round by round.
Ratios to ProtoNet carry over to other machines, milliseconds do not.
"""

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from deepbdc._memory import keep_freed_memory
from deepbdc._modes import evaluating
from deepbdc.backbones import create_backbone
from deepbdc.backbones.base import Backbone
from deepbdc.data.dataset import ArrayDataset
from deepbdc.errors import UserError
from deepbdc.methods import Method, create_method
from deepbdc.methods.base import TrainingClasses, methods
from deepbdc.preprocessing import Preprocessing
from deepbdc.recipes import Recipe, list_recipes, load_recipe, read_recipe
from deepbdc.report.evaluation import ASSUMES_BALANCE, TRANSDUCTIVE, mark
from deepbdc.stages import TrainingEpisode
from measure import verdict

WAY, QUERY, SIZE = 5, 15, 84
NETWORK, TEST, TRAINING = "the network", "test task", "training step"
PAPER = {  # milliseconds on a GPU: test with 1 and 5 shots, training with 1 and 5 shots
    "protonet": {TEST: (115, 143), TRAINING: (304, 365)},
    "adm": {TEST: (199, 221), TRAINING: (908, 967)},
    "covnet": {TEST: (120, 144), TRAINING: (310, 374)},
    "deepemd": {TEST: (457, 12617), TRAINING: (80_000, 1_000_000)},
    "meta_deepbdc": {TEST: (161, 198), TRAINING: (505, 623)},
    "stl_deepbdc": {TEST: (184, 245)},
}
AIMS = {  # the largest ratio with 1 and 5 shots that we want to see
    ("covnet", TEST): (1.1, 1.1),
    ("meta_deepbdc", TEST): (1.15, 1.15),
    ("meta_deepbdc", TRAINING): (1.3, 1.3),
    ("stl_deepbdc", TEST): (1.15, 1.15),
    ("adm", TEST): (1.5, 1.5),
    ("frn", TEST): (1.3, 1.3),
    ("deepemd", TEST): (2.0, 10.0),
}


def recipe_of(name: str, shot: int) -> Recipe:
    """The miniImageNet recipe of a method, with a ResNet-12 and the task that is timed."""
    known = set(list_recipes())
    names = (f"miniimagenet/{name}_{shot}shot", f"miniimagenet/{name}", f"miniimagenet/{name}_5shot")
    found = next((entry for entry in names if entry in known), f"miniimagenet/protonet_{shot}shot")
    overrides = [f"method={name}", "backbone={name: resnet12}", f"size={SIZE}", "precision=32-true"]
    if read_recipe(found).get("meta"):
        task = {"way": WAY, "shot": shot, "query": QUERY, "episodes_per_step": 1, "accumulate": 1}
        overrides += [f"meta.{key}={value}" for key, value in task.items()]
    return load_recipe(found, overrides)


class Maps(Backbone):
    """No network: the images are its feature maps already."""

    def __init__(self, like: Backbone, size: int) -> None:
        super().__init__(like.out_channels, Preprocessing(size, size))

    def forward(self, images: Tensor) -> Tensor:
        """The maps themselves."""
        return images


Times = dict[tuple[str, str], list[float]]


class Shot:
    """What is timed for one number of shots: functions by method and title; the network is called NETWORK."""

    def __init__(self, names: list[str], shot: int, train: bool) -> None:
        self.shot = shot
        self.sides: dict[tuple[str, str], Callable[[], object]] = {}
        self.whole: set[str] = set()
        self.marks: dict[str, str] = {}
        generator = torch.Generator().manual_seed(shot)
        self.images = torch.randn(WAY * (shot + QUERY), 3, SIZE, SIZE, generator=generator)
        self.labels = torch.arange(WAY).repeat(shot)
        self.answers = torch.arange(WAY).repeat(QUERY)
        network = create_backbone("resnet12").train()
        with torch.no_grad():
            self.maps = network(self.images)  # also fills the running statistics of batch norm
        optimiser = torch.optim.SGD(network.parameters(), lr=1e-6, momentum=0.9, nesterov=True)
        self.sides[NETWORK, TEST] = lambda: self._embed(network)
        if train:
            self.sides[NETWORK, TRAINING] = lambda: self._train_network(network, optimiser)
        for name in names:
            self._add(name, network, train)

    def _add(self, name: str, network: Backbone, train: bool) -> None:
        recipe = recipe_of(name, self.shot)
        try:
            maps = Maps(network, self.maps.shape[-1])
            method, inputs = create_method(name, maps, self.shot, **recipe.options), self.maps
            inside = type(method).source is not Method.source
        except UserError:  # it acts between the blocks of the network
            inside = True
        if inside:
            method, inputs = create_method(name, copy.deepcopy(network), self.shot, **recipe.options), self.images
            self.whole.add(name)
        elif type(method).remember is not Method.remember:
            self._remember(method, create_method(name, network, self.shot, **recipe.options))
        self.marks[name] = mark(method.transductive, method.assumes_balanced_queries)
        trained = copy.deepcopy(method)
        self.sides[name, TEST] = lambda: self._classify(method, inputs)
        if train and "meta" in recipe.stages:
            values = list(trained.parameters()) or [nn.Parameter(torch.zeros(1))]  # most have none beside the network's
            optimiser = torch.optim.SGD(values, lr=1e-6, momentum=0.9, nesterov=True)
            self.sides[name, TRAINING] = lambda: self._train(trained, optimiser, inputs)

    def _remember(self, method: Method, same: Method) -> None:
        """Let ``same``, which has a network, remember random training images, and give that to ``method``."""
        pictures = np.random.default_rng(0).integers(0, 256, (16, SIZE, SIZE, 3), dtype=np.uint8)
        data = ArrayDataset(pictures, np.arange(16) // 2, [str(label) for label in range(8)], "random", "train")
        with evaluating(same), torch.no_grad():
            same.remember(TrainingClasses(data))
        kept = {key: value for key, value in same.state_dict().items() if not key.startswith("embedding.backbone.")}
        method.load_state_dict(kept, strict=False)

    def _embed(self, network: Backbone) -> object:
        network.eval()
        with torch.no_grad():
            return network(self.images)

    def _train_network(self, network: Backbone, optimiser: torch.optim.Optimizer) -> None:
        network.train()
        optimiser.zero_grad()
        out = network(self.images)
        out.backward(torch.ones_like(out))
        optimiser.step()

    def _classify(self, method: Method, inputs: Tensor) -> object:
        with evaluating(method), torch.no_grad():
            support, query = method.embed(inputs).split([len(self.labels), len(self.answers)])
            return method.classify(support, self.labels, query)

    def _train(self, method: Method, optimiser: torch.optim.Optimizer, inputs: Tensor) -> None:
        method.train()
        optimiser.zero_grad()
        images = inputs.clone().requires_grad_()  # the maps get a gradient, as from the network
        episode = TrainingEpisode(images, self.labels, self.answers, torch.arange(WAY))
        method.episode_loss(episode).value.backward()
        optimiser.step()

    def run(self, repeats: int) -> Times:
        """Milliseconds of each side in each round, after one round to warm up."""
        times: Times = {key: [] for key in self.sides}
        for repeat in range(repeats + 1):
            for key, side in self.sides.items():
                shown = f"{self.shot}-shot, round {repeat} of {repeats}: {' '.join(key)}"
                print(f"\r\033[K{shown}", end="", file=sys.stderr, flush=True)
                start = time.perf_counter()
                side()
                if repeat > 0:
                    times[key].append((time.perf_counter() - start) * 1e3)
        print("\r\033[K", end="", file=sys.stderr)
        return times


def lines(title: str, shots: dict[int, Shot], times: dict[int, Times]) -> list[str]:
    """The table of one title: milliseconds with and without the network, ratios to ProtoNet, and our aims."""
    columns = "".join(f"{f'{shot}-shot':>10}{'own part':>10}{'ratio':>8}{'paper':>8}{'aim':>14}" for shot in shots)
    table = ["", f"{title}, milliseconds", f"{'method':<18}{columns}"]
    for name in [name for name, what in times[1] if what == title and name != NETWORK]:
        text = f"{name + shots[1].marks[name]:<18}"
        for place, shot in enumerate(shots):
            network = statistics.median(times[shot][NETWORK, title])
            own = statistics.median(times[shot][name, title])
            base = network + statistics.median(times[shot]["protonet", title])
            whole = own if name in shots[shot].whole else network + own
            published = PAPER.get(name, {}).get(title)
            theirs = "" if published is None else f"{published[place] / PAPER['protonet'][title][place]:.2f}"
            aim = AIMS.get((name, title))
            wanted = "" if aim is None else f"{aim[place]:.2f} {verdict(whole / base <= aim[place])}"
            part = "-" if name in shots[shot].whole else f"{own:.1f}"
            text += f"{whole:>10.0f}{part:>10}{whole / base:>8.2f}{theirs:>8}{wanted:>14}"
        table.append(text.rstrip())
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=methods.names(), help="which methods (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--no-training", action="store_true", help="leave out the training step")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "methods.txt")
    given = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    asked = [name for name in given.methods if not methods.find(name).needs_base_images]
    names = ["protonet", *(name for name in asked if name != "protonet")]
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    text = [f"{machine}, ResNet-12, {SIZE} px, {WAY}-way, {QUERY} queries per class, medians of {given.repeats} rounds"]
    shots = {shot: Shot(names, shot, not given.no_training) for shot in (1, 5)}
    times = {shot: timed.run(given.repeats) for shot, timed in shots.items()}
    for title in (TEST, TRAINING) if not given.no_training else (TEST,):
        text += lines(title, shots, times)
    text += ["", TRANSDUCTIVE, ASSUMES_BALANCE]
    print("\n".join(text))
    given.output.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
