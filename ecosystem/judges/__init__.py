"""Pytest plugins that put this library in a place which another project's tests try: beside `ecosystem.plugin`.

`--suite-on` is the backend; without it the tests run as they are, natively.
"""
