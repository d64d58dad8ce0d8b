"""Kinds of damage to a file, as a power cut or a worn flash card leaves it."""


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def one_bit(file):
    data = bytearray(file.read_bytes())
    if data:
        data[len(data) // 3] ^= 1
        file.write_bytes(data)


DAMAGE = {
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "cut": cut,
    "one bit": one_bit,
    "gone": lambda file: file.unlink(),
}
