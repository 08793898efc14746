"""A 64 KiB firmware without a kernel: all processors compute for a second at the same time, and halt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_SIZE: Final = 0x10000  # ends at 4 GiB; processors start sixteen bytes below
_ROOT: Final = 0xFFFF0000  # start address
_ROUNDS: Final = (2**29).to_bytes(4, "little")  # about a second of CPU time under TCG
_HALT: Final = bytes.fromhex("f4 eb fd")  # hlt, repeated after a non-maskable interrupt
_COMPUTE: Final = (
    bytes.fromhex("b9") + _ROUNDS + bytes.fromhex("49  75 fd") + _HALT
)  # ecx counts down, 32 bits
_COMPUTE_16: Final = bytes.fromhex("66 b9") + _ROUNDS + bytes.fromhex("66 49  75 fc") + _HALT  # in real mode
_OTHERS: Final = 0xF000  # start address of the other processors: the page in the startup IPI
_GDT, _GDT_REGISTER, _FLAT = 0x40, 0x58, 0x18
_START: Final = (
    bytes.fromhex("fa")  # cli
    + bytes.fromhex("2e 66 0f 01 16")  # lgdt cs:[...]
    + _GDT_REGISTER.to_bytes(2, "little")
    + bytes.fromhex("0f 20 c0  0c 01  0f 22 c0")  # protected mode: bit 0 of cr0
    + bytes.fromhex("66 ea")  # jmp 08:..., which is the next instruction
    + (_ROOT + _FLAT).to_bytes(4, "little")
    + bytes.fromhex("08 00")
    + bytes.fromhex("66 b8 10 00  8e d8")  # ds: all of the memory
    + bytes.fromhex("c7 05 00 03 e0 fe  ff 46 0c 00")  # to the local APIC: all others start in page 0xff
    + _COMPUTE
)
_SEGMENTS: Final = bytes(8) + bytes.fromhex("ff ff 00 00 00 9a cf 00  ff ff 00 00 00 92 cf 00")


def write_firmware(path: Path) -> Path:
    """Write the firmware to a file, and return its path."""
    rom = bytearray(_SIZE)
    for place, part in (
        (0, _START),
        (_GDT, _SEGMENTS),
        (_GDT_REGISTER, (len(_SEGMENTS) - 1).to_bytes(2, "little") + (_ROOT + _GDT).to_bytes(4, "little")),
        (_OTHERS, _COMPUTE_16),
        (0xFFF0, bytes.fromhex("e9 0d 00")),  # reset vector: jmp to the start
    ):
        rom[place : place + len(part)] = part
    path.write_bytes(rom)
    return path
