"""Found on the path of the processes that tests start: the lines they run count for the test that started them."""

from __future__ import annotations

import atexit
import os

if "MUTANTS_COVERAGE" in os.environ and "PYTEST_CURRENT_TEST" in os.environ:
    import coverage

    _coverage = coverage.Coverage(
        data_file=os.path.join(os.environ["MUTANTS_COVERAGE"], f"lines-child-{os.getpid()}"),
        source=[os.environ["MUTANTS_SOURCES"]],
        config_file=False,
        context=os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0],
    )
    _coverage.start()
    atexit.register(_coverage.save)
    atexit.register(_coverage.stop)
