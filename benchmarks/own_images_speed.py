"""How long `FewShotClassifier` takes to learn from 25 images and to classify one more.

    python benchmarks/own_images_speed.py

The report is printed and written to benchmarks/results/own_images_speed.txt.
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

# Everything that a user waits for. It runs in a new process, so that nothing is cached.
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
    """Time a first fit on 5×5 images of 640×480 pixels and a prediction: medians over five new processes."""
    runs = []
    for _ in range(5):
        output = subprocess.run([sys.executable, "-c", SECONDS], capture_output=True, text=True, check=True).stdout
        runs.append([float(number) for number in output.split()])
    imported, making, embedding, learning, predicting, again = np.median(np.array(runs), axis=0)
    whole = making + embedding + learning + predicting
    return [
        "Fit on 5×5 images of 640×480 pixels and prediction of one more, in a new process, median of five:",
        f"  {whole:.2f} s (limit {MOST_SECONDS:g} s: {verdict(whole < MOST_SECONDS)}), "
        f"of which creating the network {making:.2f} s,",
        f"  embedding {embedding:.2f} s, learning {learning:.2f} s, first prediction {predicting:.2f} s",
        f"  not included: importing FewShotClassifier, with torch and timm, {imported:.2f} s",
        f"  each further prediction takes {1000 * again:.0f} ms",
    ]


def main() -> None:
    lines = [f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}", "", *seconds()]
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
