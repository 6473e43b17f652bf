import io
import sys
import time

from tensorgraft.compiled import patience


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_while_it_takes_long(monkeypatch):
    monkeypatch.setattr(patience, "_SECONDS", 0.01)
    for terminal, said in ((Terminal(), "tensorgraft: compiling step, 0 s"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", terminal)
        with patience.progress_shown("step"):
            time.sleep(0.1)
        text = terminal.getvalue()
        assert said in text and (not said or text.endswith("\r\x1b[K"))


def test_nothing_while_it_is_quick(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with patience.progress_shown("step"):
        pass
    assert not sys.stderr.getvalue()
