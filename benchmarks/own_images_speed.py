"""How long a person with a handful of pictures waits.

    python benchmarks/own_images_speed.py

Writes what it prints to benchmarks/results/own_images_speed.txt.
"""

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from measure import verdict

RESULTS = Path(__file__).parent / "results" / "own_images_speed.txt"
MOST_SECONDS = 3.0

# What a person waits for, in a process of its own: nothing is warm.
SECONDS = """
import time
start = time.perf_counter()
import numpy as np
from deepbdc import FewShotClassifier
imported = time.perf_counter()
random = np.random.default_rng(0)
pictures = [random.integers(0, 256, (480, 640, 3), dtype=np.uint8) for _ in range(26)]
labels = [f"class {number % 5}" for number in range(25)]
begin = time.perf_counter()
classifier = FewShotClassifier()
classifier.embed([])
made = time.perf_counter()
embedded = classifier.embed(pictures[:25])
middle = time.perf_counter()
classifier.fit(embedded, labels)
learnt = time.perf_counter()
classifier.predict(pictures[25:])
end = time.perf_counter()
for _ in range(10):
    classifier.predict(pictures[25:])
again = (time.perf_counter() - end) / 10
print(imported - start, made - begin, middle - made, learnt - middle, end - learnt, again)
"""


def seconds() -> list[str]:
    """A first fit on 5×5 pictures of 640×480 and a prediction, in a new process, the median of five."""
    runs = []
    for _ in range(5):
        output = subprocess.run([sys.executable, "-c", SECONDS], capture_output=True, text=True, check=True).stdout
        runs.append([float(number) for number in output.split()])
    imported, making, embedding, learning, predicting, again = np.median(np.array(runs), axis=0)
    whole = making + embedding + learning + predicting
    return [
        "Fit on 5×5 pictures of 640×480 and prediction of one more, new process, median of five:",
        f"  {whole:.2f} s (limit {MOST_SECONDS:g} s: {verdict(whole < MOST_SECONDS)}), "
        f"of which making the network {making:.2f} s,",
        f"  embedding {embedding:.2f} s, learning {learning:.2f} s, first prediction {predicting:.2f} s",
        f"  before: importing FewShotClassifier, with torch and timm, {imported:.2f} s",
        f"  after: each further prediction {1000 * again:.0f} ms",
    ]


def main() -> None:
    lines = [f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}", "", *seconds()]
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
