"""App bundles on a device: an invalid bundle is refused, and a damaged app is not used."""

import hashlib
import io
import os
import sys
import time
import zipfile

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edgewire.deploy.device.apps import MOST_APPS, AppError, Apps
from edgewire.machine import app_signature
from tests.deploy.damage import DAMAGE

TEXT = b"a line of an app\n" * 400


def bundle(compression=zipfile.ZIP_DEFLATED):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        archive.writestr("app/main.py", TEXT)
    return bytearray(made.getvalue())


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def encrypted(data):
    data[6] |= 1  # in the entry, and in the directory at the end
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return data


def unknown(data):
    data[8] = data[data.index(b"PK\x01\x02") + 10] = 77
    return data


def damaged(data):
    start = data.index(b"main.py") + 7
    data[start : start + 8] = b"\xff" * 8
    return data


def other(data):
    at = data.index(b"line")
    data[at] ^= 1
    return data


@pytest.mark.parametrize(
    "data",
    [b"", b"no zip at all", bundle()[:-30], encrypted(bundle()), unknown(bundle()),
     damaged(bundle()), other(bundle(zipfile.ZIP_STORED))],
)  # fmt: skip
def test_a_bundle_that_cannot_be_unpacked_gives_one_line(tmp_path, data):
    apps, data = Apps(tmp_path / "apps"), bytes(data)
    with pytest.raises(AppError, match="cannot be unpacked"):
        apps.put(digest_of(data), data)
    assert not apps.has(digest_of(data))


def test_a_bundle_with_a_wrong_hash_is_refused(tmp_path):
    apps = Apps(tmp_path / "apps")
    with pytest.raises(AppError, match="is not the one"):
        apps.put(digest_of(b"another"), bytes(bundle()))


def test_a_bundle_is_unpacked_once_only(tmp_path):
    apps, data = Apps(tmp_path / "apps"), bytes(bundle())
    apps.put(digest_of(data), data)
    assert apps.has(digest_of(data))
    assert Apps(tmp_path / "apps").has(digest_of(data))
    (found,) = tmp_path.rglob("main.py")
    assert found.read_bytes() == TEXT


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_process_replaces_damaged_files_and_removes_a_damaged_bundle(kind, tmp_path, caplog):
    folder, data = tmp_path / "apps", bytes(bundle())
    digest = digest_of(data)
    main, bundled = folder / digest / "app" / "main.py", folder / f"{digest}.fab"
    Apps(folder).put(digest, data)
    running, cache = Apps(folder), folder / digest / "app" / "__pycache__"
    cache.mkdir()
    (cache / "main.pyc").write_bytes(b"bytecode, of which nobody has a hash")
    (folder / digest / "written").write_bytes(b"by the app itself")
    assert running.has(digest)
    assert not cache.exists()
    os.utime(main, (1, 1))
    assert Apps(folder).has(digest)
    assert main.stat().st_mtime == 1  # what is sound is not written: the disk may be full
    DAMAGE[kind](main)
    assert running.has(digest)  # it has imported its modules
    assert not main.exists() or main.read_bytes() != TEXT
    assert Apps(folder).has(digest)
    assert main.read_bytes() == TEXT
    assert (folder / digest / "written").exists()
    DAMAGE[kind](bundled)
    assert running.has(digest)
    assert not Apps(folder).has(digest)
    if kind != "gone":
        assert "is damaged: it is fetched again" in caplog.messages.pop()
        assert not (folder / digest).exists()


def test_the_files_of_removed_apps_go_with_them(tmp_path):
    apps = Apps(tmp_path)
    for number in range(9):
        data = bytes(bundle()) + bytes(number)
        apps.put(digest_of(data), data)
    folders = {each.name for each in tmp_path.iterdir() if each.is_dir()}
    assert {each.stem for each in tmp_path.glob("*.fab")} == folders
    assert len(folders) == MOST_APPS


APP = """
[tool.flwr.app.components]
clientapp = "small-app:app"
"""


def small(number):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("pyproject.toml", f"# {number}{APP}")
        archive.writestr("small-app.py", "import flwr.clientapp\napp = flwr.clientapp.ClientApp()")
    return made.getvalue()


def test_the_app_used_last_stays_after_the_clock_was_set_back(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    apps, bundles = Apps(tmp_path), [small(number) for number in range(MOST_APPS + 1)]
    for number, each in enumerate(bundles[:-1]):
        apps.put(digest_of(each), each)
        ahead = time.time() + 365 * 86400 * (number > 0)
        os.utime(tmp_path / f"{digest_of(each)}.fab", (ahead, ahead))
    apps.load(digest_of(bundles[0]))
    del sys.modules["small-app"]
    apps.put(digest_of(bundles[-1]), bundles[-1])
    kept = [Apps(tmp_path).has(digest_of(each)) for each in bundles]
    assert (kept[0], kept[-1], sum(kept)) == (True, True, MOST_APPS)


@pytest.fixture(scope="module")
def owners(tmp_path_factory):
    """Return the files with the private keys of two owners, and their public keys."""
    found = []
    for name in ("owner", "other"):
        file = tmp_path_factory.mktemp("owners") / name
        key = Ed25519PrivateKey.generate()
        file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        found.append((file, key.public_key()))
    return found


@pytest.fixture
def signed(tmp_path, monkeypatch):
    """Return a function that returns a bundle signed by the key in a file at a time."""

    def call(data, file, when=1000):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: when + 0.5)
            app_signature.sign(tmp_path, data, file)
        found = app_signature.with_signature(tmp_path, data)
        assert app_signature.unsigned(found) == data
        return found

    return call


def taken(apps, data):
    """Let a device get and check an app; return why it refuses the app, or ""."""
    try:
        if not apps.has(digest_of(data)):
            apps.put(digest_of(data), data)
        return "" if apps.has(digest_of(data)) else "it is not there"
    except AppError as error:
        return str(error)


OTHERS = "this device takes apps that its owner has signed: `keys sign` signs one"
LATER = "this device has taken an app that was signed later: sign this one again"
SMALL = small(0)


def test_a_device_takes_what_its_owner_has_signed(tmp_path, owners, signed):
    (mine, owner), (other, stranger) = owners
    plain = [small(number) for number in range(4)]
    apps = Apps(tmp_path / "apps", [digest_of(plain[3])], owner)
    assert [taken(apps, each) for each in plain] == [OTHERS, OTHERS, OTHERS, ""]
    new = signed(plain[0], mine, 2000)
    assert taken(apps, new) == ""
    assert taken(apps, signed(plain[1], other, 3000)) == OTHERS
    assert taken(apps, signed(plain[1], mine, 1999)) == LATER
    assert taken(apps, signed(plain[1], mine, 2000)) == ""  # signed at the same time
    assert taken(apps, signed(plain[2], mine, 4000)) == ""
    for again in (apps, Apps(tmp_path / "apps", [], owner)):  # the device has it, and refuses it
        assert taken(again, new) == LATER
    assert taken(Apps(tmp_path / "apps", [], stranger), signed(plain[2], mine, 4000)) == OTHERS
    newest = tmp_path / "apps" / "newest"
    newest.write_text("")
    assert "newest on this device is damaged: remove it" in taken(apps, new)
    newest.unlink()
    assert taken(apps, signed(plain[2], mine, 4000)) == ""
    assert taken(Apps(tmp_path / "apps"), new) == ""  # without the option


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_no_other_byte_of_a_signed_app_is_taken(tmp_path, owners, signed, data):
    """The comment is at the end: the bytes before it are the app, and its length."""
    (mine, owner), _ = owners
    whole = signed(SMALL, mine)
    at = data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 80, len(whole) - 1))
    more = data.draw(st.binary(min_size=1, max_size=9))
    cut = data.draw(st.sampled_from([0, len(more), len(whole)]))
    changed = whole[:at] + more + whole[at + cut :]
    assume(changed != whole)
    apps = Apps(tmp_path / "damaged", [], owner)
    with pytest.raises(AppError, match=OTHERS):
        apps.put(digest_of(changed), changed)
