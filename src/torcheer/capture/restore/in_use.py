"""Which models are in use in which thread: a model is put back as it was found, and not two threads can do so at once."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from torch.nn import Module

from ...cleaning import Managed
from ...errors import ModelInUse

_lock = threading.RLock()  # what ends a block may run while another one begins, in the same thread
_uses: list[in_use] = []


class in_use(Managed[None]):  # noqa: N801 - used as a function: `with in_use(modules, "logged"):`
    """Inside, other threads may not use these modules in a way that does not go with this one: they get `ModelInUse`.

    Args:
        modules: the model and all modules inside it.
        use: what is done with them, in a word.
        restores: everything is put back at the end, also what another thread does to the modules meanwhile.
    """

    def __init__(self, modules: Iterable[Module], use: str, *, restores: bool) -> None:
        self.modules = {id(module): module for module in modules}
        self._use = use
        self._restores = restores
        self._thread = threading.get_ident()
        self.thread_name = threading.current_thread().name

    def _begin(self) -> None:
        with _lock:
            for other in _uses:
                if other._thread != self._thread and (self._restores or other._restores):
                    shared = next((one for key, one in self.modules.items() if key in other.modules), None)
                    if shared is not None:
                        raise ModelInUse(
                            f"thread {other.thread_name!r} uses this model (it is being {other._use} there), and thread "
                            f"{self.thread_name!r} wants to have it {self._use}; both have the same {type(shared).__name__}. "
                            "A model is left as it was found, which two threads cannot do at once. Let them take turns, by "
                            "a threading.Lock around the calls, or give each thread a copy: copy.deepcopy(model)."
                        )
            _uses.append(self)

    def _end(self, *error: object) -> None:
        with _lock:
            _uses.remove(self)
        self.modules.clear()
