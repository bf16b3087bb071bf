"""What importing the package costs and changes. Each test is a fresh interpreter."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import deepbdc
from deepbdc._optional import require
from deepbdc._registry import Registry


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = "{'torch', 'torchvision', 'timm', 'matplotlib', 'numpy', 'rich', 'cyclopts'} & set(sys.modules)"


def test_import_loads_nothing_heavy() -> None:
    assert run(f"import sys, deepbdc; print({HEAVY})") == "set()"


def test_the_layer_needs_torch_only() -> None:
    found = run(
        "import sys, deepbdc; deepbdc.BDCPool(8); print({'torchvision', 'timm', 'matplotlib'} & set(sys.modules))"
    )
    assert found == "set()"


def test_the_first_call_does_not_import_the_compiler() -> None:
    code = """
import sys, torch, deepbdc
deepbdc.BDCPool(8)(torch.rand(2, 8, 3, 3, requires_grad=True)).sum().backward()
print('torch._dynamo' in sys.modules)
"""
    assert run(code) == "False"


def test_one_answer_needs_neither_timm_nor_torchvision_nor_scikit_learn() -> None:
    """They take seconds to import, and a person who classifies one picture waits for them."""
    code = """
import sys
from PIL import Image
from deepbdc import FewShotClassifier
fitted = FewShotClassifier().fit([Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")], ["red", "blue"])
again = FewShotClassifier.load(fitted.to_bytes())
again.predict([Image.new("RGB", (9, 9), "red")])
print({'timm', 'torchvision', 'sklearn', 'scipy.stats', 'pandas', 'matplotlib', 'torch._dynamo'} & set(sys.modules))
"""
    assert run(code) == "set()"


def test_help_does_not_import_torch() -> None:
    code = """
import sys
from deepbdc.cli import main
for command in "", "classify", "fit", "explain", "app", "train", "evaluate", "compare", "paper", "data", "data check":
    main([*command.split(), "--help"])
print({'torch', 'torchvision'} & set(sys.modules))
"""
    assert run(code).endswith("set()")


@pytest.mark.parametrize("first", ["import deepbdc.pooling", "from deepbdc.statistic import bdc_matrix"])
def test_bdc_is_the_function_whatever_is_imported_first(first: str) -> None:
    code = f"{first}\nimport deepbdc, types\nprint(type(deepbdc.bdc).__name__, deepbdc.bdc.__name__)"
    assert run(code) == "function bdc"


def test_all_names_are_there() -> None:
    for name in deepbdc.__all__:
        assert getattr(deepbdc, name).__name__ == name
    assert set(deepbdc.__all__) <= set(dir(deepbdc))
    with pytest.raises(AttributeError, match="attribute nonsense"):
        _ = deepbdc.nonsense


def test_the_version_is_the_same_everywhere() -> None:
    """`deepbdc.__version__` is where it is changed; the installed package and the citation must follow."""
    citation = yaml.safe_load((Path(__file__).parent.parent / "CITATION.cff").read_text(encoding="utf-8"))
    remedy = "install the package again (make install)"
    assert citation["version"] == deepbdc.__version__
    assert version("deepbdc") == deepbdc.__version__, remedy


def test_torchvision_imports_and_transforms() -> None:
    code = """
import deepbdc
import torch
from torchvision.transforms import v2
print(v2.CenterCrop(4)(torch.zeros(3, 8, 8)).shape[-1])
"""
    assert run(code) == "4"


def test_operators_are_declared_only_where_torchvision_lacks_them() -> None:
    """Beside a fitting torch nothing is declared by us; beside another, nms exists but has no kernel."""
    code = """
import deepbdc, torch, torchvision
from deepbdc import _torchvision_operators
ours = bool(_torchvision_operators._libraries)
print(ours != torchvision.extension._has_ops())
boxes, scores = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.ones(1)
try:
    torchvision.ops.nms(boxes, scores, 0.5)
    print(not ours)
except (RuntimeError, NotImplementedError):
    print(ours)
"""
    assert run(code) == "True\nTrue"


def test_the_watch_for_torchvision_ends_with_its_import() -> None:
    code = """
import sys, deepbdc
from deepbdc._torchvision_operators import _BeforeTorchvision, install
watching = lambda: sum(isinstance(f, _BeforeTorchvision) for f in sys.meta_path)
install()
counts = [watching()]
import torchvision
install()
print(*counts, watching())
"""
    assert run(code) == "1 0"


def test_a_missing_extra_names_the_pip_command() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'deepbdc\[magic\]'"):
        require("no_such_package_xyz", extra="magic")
    code = """
import sys
sys.modules["onnx"] = None
from deepbdc.own_images.onnx import write_onnx
try:
    write_onnx("a.onnx", embedding=None, mean=None, rule=None, confidence=None, directions=None, classes=[])
except ModuleNotFoundError as error:
    print(error)
"""
    assert "pip install 'deepbdc[onnx]'" in run(code)


def test_registry() -> None:
    registry: Registry[int] = Registry("number")

    @registry.register
    def seven(plus: int = 0) -> int:
        return 7 + plus

    assert registry.names() == ["seven"]
    assert registry.create("seven", plus=1) == 8
    with pytest.raises(ValueError, match=r"no number is called 'sevn': did you mean 'seven'\? Known: seven\."):
        registry.create("sevn")
    with pytest.raises(TypeError, match=r"number 'seven' has no option 'pluss': did you mean 'plus'\?"):
        registry.create("seven", pluss=1)
