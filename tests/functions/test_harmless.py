"""Which of torch's functions a file may name: all that logs of programs have, none that reaches further than its arguments."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch

import torcheer
from operator_database import name_of, operators, samples
from torcheer._torch.functions import facts
from torcheer._torch.functions.allowed_calls import is_harmless
from torcheer._torch.functions.facts import Kind
from torcheer._torch.internals import FUNCTION_NAMESPACES, operator_names
from torcheer.store.function_names import Functions, MissingFunction, write_function

RUNS = (Kind.OPERATION, Kind.COMPOSITE)
# What these words are part of reaches memory by an address, files, other processes, or settings of this one.
SUSPICIOUS = (
    "blob from_file dlpack data_ptr ir_module fork thread autocast_ anomaly flush_denormal docstr functional_tensor "
    "functionalize load save storage cdata import unsafe_tensor init_ext view_func record_stream seed fbgemm reorder test_ "
    "mirror_autograd parse_ir parse_schema parse_type batch_dim nested_view"
).split()
FINE = frozenset(  # though such a word is part of its name
    "module_load _no_grad_uniform_ as_strided storage_type _autocast_to_full_precision _autocast_to_reduced_precision".split()
)


def named_by_files():
    """Every function that a file could name by one of the paths that torch's own functions have."""
    for space, owner in FUNCTION_NAMESPACES.items():
        for name in dir(owner):
            found = Functions()._find(f"{space}.{name}")
            if found is not None and facts(found).kind in RUNS:
                yield f"{space}.{name}"
    for library in ("aten", "prims", "quantized"):
        for name in sorted(
            {one.partition("::")[2].partition(".")[0] for one in operator_names() if one.startswith(f"{library}::")}
        ):
            found = Functions()._find(f"torch.ops.{library}.{name}")
            if found is not None and facts(found).kind in RUNS:
                yield f"torch.ops.{library}.{name}"


def test_no_function_that_a_file_may_name_reaches_further_than_its_arguments():
    importlib.import_module("torch._inductor.inductor_prims")  # declares operators that only torch's compiler calls
    found = list(named_by_files())
    assert len(found) > 2000
    names = {path: path.rpartition(".")[2] for path in found}
    assert [path for path, name in names.items() if name not in FINE and any(word in name for word in SUSPICIOUS)] == []


def test_private_functions_that_nobody_names_are_not_found():
    """A new private function of torch is not in the list until somebody put it there."""
    known = {path.rpartition(".")[2] for path in named_by_files()}
    assert not {"_from_blob", "_print", "_foobar", "_reshape_alias", "_sparse_coo_tensor_unsafe"} & known


@pytest.mark.filterwarnings("ignore")
def test_every_operator_of_torchs_database_may_be_named():
    """Those that a log of a call of it has."""
    refused = set()
    count = 0
    for operator in (one for one in operators() if one.supported_dtypes("cpu")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in samples(operator, 1):
                try:
                    history = torcheer.log_forward_pass(operator.op, (sample.input, *sample.args), sample.kwargs)
                except Exception:  # what an operator refuses is tested elsewhere
                    continue
                for function in history._log.functions:
                    written = write_function(function)
                    if function.func is None or written["found"].startswith("torch.ops.torch_nn."):
                        continue  # of a library that torch makes when it is first used
                    count += 1
                    if type(Functions().read(written, runs=function.kind in RUNS).func) is MissingFunction:
                        refused.add((name_of(operator), written["found"]))
    assert count > 500
    assert refused == set()


def test_what_only_asks_is_found_and_never_called():
    """A read by Python (`bool(x)`) is named in a file, but a replay does not call it."""
    assert Functions()._find("torch.Tensor.__bool__") is torch.Tensor.__bool__
    assert facts(torch.Tensor.__bool__).kind not in RUNS
    assert not is_harmless(torch.set_num_threads)
