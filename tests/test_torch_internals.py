"""Torch's private parts are named in one file, and what that file says of them is so."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

from torcheer._torch import internals

SRC = Path(__file__).parent.parent / "src"
FILES = [path for path in SRC.rglob("*.py") if path.name != "internals.py"]


ASKING = ("getattr", "hasattr", "get", "attrgetter")


def private_names(tree: ast.AST) -> list[str]:
    """The private parts of torch that a module names: `torch._C`, `torch.autograd._x`, `from torch.utils import _pytree`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch" and node.level == 0:
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            found += [f"{node.module}: {name}" for name in names if name.startswith("_") and not name.startswith("__")]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("torch.") and "._" in alias.name]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            text = ast.unparse(node.value)
            if text == "torch" or text.startswith("torch."):
                found.append(f"{text}.{node.attr}")
            elif node.attr in ATTRIBUTES and text not in ("self", "cls"):
                found.append(f"….{node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("torch._"):
            found.append(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ASKING:
            found += [one.value for one in node.args if isinstance(one, ast.Constant) and one.value in ATTRIBUTES]
    return found


def private_attributes() -> set[str]:
    """The private attributes of the objects of torch that torcheer meets."""
    leaf = torch.zeros(1, requires_grad=True)
    node = (leaf + 1).grad_fn
    add = torch.ops.aten.add
    objects = (leaf, node, node.next_functions[0][0], nn.Linear(1, 1), nn.MultiheadAttention(2, 1), add, add.Tensor)
    made = torch.jit.script(nn.Linear(1, 1)), torch.compile(nn.Linear(1, 1)), torch.optim.SGD([leaf], lr=0.1)
    found = {name for one in (*objects, *made, leaf.untyped_storage(), torch.Generator()) for name in dir(one)}
    found |= {"_is_replica", "_torchdynamo_orig_callable", "_overloadname", "_base", "_version"}
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


ATTRIBUTES = private_attributes()


def test_the_search_finds_what_it_is_for():
    text = "import torch._dynamo\nfrom torch.utils import _pytree\ntorch._C.x\ntorch.autograd._y()\nz = 'torch._dynamo'"
    assert len(private_names(ast.parse(text))) == 5
    text = "a._version + getattr(m, '_parameters') + self._modules + a._own"
    assert sorted(private_names(ast.parse(text))) == ["_parameters", "…._version"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_private_torch_is_named_in_one_file(path):
    assert private_names(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_global_hooks_leave_nothing_behind():
    from torch.nn.modules import module as modules

    def counts():
        return [len(value) for name, value in vars(modules).items() if name.startswith("_global_") and isinstance(value, dict)]

    before, seen = counts(), []
    with (
        pytest.raises(ZeroDivisionError),
        internals.global_module_hooks(lambda *_: seen.append("enter"), lambda *_: seen.append("leave")),
    ):
        nn.Identity()(torch.ones(1))
        raise ZeroDivisionError
    assert seen == ["enter", "leave"]
    assert counts() == before


def test_addresses_of_storages_are_one_number():
    tensor = torch.ones(3)
    assert internals.storage_address(tensor) == internals.address_of(tensor.untyped_storage())


def test_vmap_is_told_from_other_transforms():
    found = []
    torch.func.grad(lambda x: (found.append(internals.is_inside_vmap()), x.sum())[1])(torch.ones(2))
    torch.func.vmap(lambda x: (found.append(internals.is_inside_vmap()), x)[1])(torch.ones(2))
    assert found == [False, True]
    assert not internals.is_transforming()
