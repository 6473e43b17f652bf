"""Forty programs of five libraries as files of other runtimes, beside what other exporters write of them."""
