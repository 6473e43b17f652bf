"""What no file may call."""

calls = 0


def touched(*args: object) -> None:
    global calls
    calls += 1
