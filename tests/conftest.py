import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--mutations",
        type=int,
        default=2000,
        help="how many damaged payloads tests/compression/test_fuzz.py decodes",
    )
