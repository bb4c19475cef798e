"""A linker just large enough for PoCL: it makes one shared object of one x86-64 object file.

PoCL ends every compilation by running `ld` with the C compiler's and the C library's development files. A machine with
nothing but Python has none of these, so this stands in ld's place there and everywhere: what runs does not depend on
the host's tools. Nothing is taken from a library but by name when the object is loaded (memset, say), so none is read.
A file that needs more than this is refused with the reason. Run as a script, by path: the standard library only, and
little of that. dataclasses, pathlib and typing would make it start in 40 ms for 15, at every compilation.

Sources: System V ABI, chapters 4 and 5 (the file, the dynamic section); its AMD64 supplement, 4.4 (relocations).
"""

from __future__ import annotations

import struct
import sys

TYPE_CHECKING = False  # typing's own would be an import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

PAGE: Final = 4096
PROGRAM_HEADERS: Final = 4
HEAD: Final = 64 + 56 * PROGRAM_HEADERS
UNDEFINED, ABSOLUTE = 0, 0xFFF1  # section numbers that are none
HIDDEN: Final = (1, 2)  # kinds of visibility
WRITE, ALLOCATE = 1, 2  # a section's flags
EXECUTED, WRITTEN = 5, 6  # a segment's flags: read with execute, read with write
SYMTAB, RELOCATIONS, ZEROS = 2, 4, 8  # kinds of section; those in PLACED are copied as they are
PLACED: Final = (1, 7, ZEROS, 0x70000001)
ABS64, PC32, PLT32, PC64 = 1, 2, 4, 24  # kinds of relocation
GOT_RELATIVE: Final = (9, 41, 42)
GLOBAL_DATA, BASE_RELATIVE = 6, 8  # what is left to the loader
SYMBOL: Final = struct.Struct("<IBBHQQ")
RELOCATION: Final = struct.Struct("<QQq")
STUB: Final = 16  # bytes of an indirect jump, padded


class CannotLinkError(Exception):
    """The object needs something that this linker has not."""


class Section:
    """One section of the object: its place in the file, and its type."""

    def __init__(self, kind: int, flags: int, offset: int, size: int, link: int, target: int, alignment: int) -> None:
        self.kind, self.flags, self.offset, self.size = kind, flags, offset, size
        self.link, self.target, self.alignment = link, target, alignment


class Symbol:
    """One symbol: its name, ELF's own two bytes about it, the number of its section and its offset there."""

    def __init__(self, name: bytes, info: int, visibility: int, section: int, value: int, size: int) -> None:
        self.name, self.info, self.visibility = name, info, visibility
        self.section, self.value, self.size = section, value, size

    @property
    def exported(self) -> bool:
        """Whether others find it by its name: it is defined, global or weak, and not hidden."""
        return self.info >> 4 != 0 and self.section != UNDEFINED and self.visibility not in HIDDEN

    @property
    def imported(self) -> bool:
        """Whether the loader finds it by its name."""
        return bool(self.name) and self.section == UNDEFINED


class Fix:
    """One relocation: its place (section, offset), type, symbol and addend."""

    def __init__(self, section: int, offset: int, kind: int, symbol: int, addend: int) -> None:
        self.section, self.offset, self.kind, self.symbol, self.addend = section, offset, kind, symbol, addend


class Relocatable:
    """An object file, read."""

    def __init__(self, data: bytes, sections: list[Section], symbols: list[Symbol], fixes: list[Fix]) -> None:
        self.data, self.sections, self.symbols, self.fixes = data, sections, symbols, fixes

    @property
    def kept(self) -> list[int]:
        """The numbers of the sections that are loaded, those that are written last; raises CannotLinkError."""
        kept = [number for number, section in enumerate(self.sections) if section.flags & ALLOCATE]
        for number in kept:
            if self.sections[number].kind not in PLACED:
                raise CannotLinkError(f"a section of kind {self.sections[number].kind:#x}")
        return sorted(kept, key=lambda number: self.sections[number].flags & WRITE)


def read(data: bytes) -> Relocatable:
    """Read an object file; raises CannotLinkError if it is not for x86-64."""
    if data[:7] != b"\x7fELF\x02\x01\x01" or struct.unpack_from("<HH", data, 16) != (1, 62):
        raise CannotLinkError("it is no object file for x86-64")
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    headers = (struct.unpack_from("<IIQQQQIIQQ", data, start + number * size) for number in range(count))
    sections = [Section(h[1], h[2], h[4], h[5], h[6], h[7], max(1, h[8])) for h in headers]
    symbols = [symbol for table in sections if table.kind == SYMTAB for symbol in _symbols(data, sections, table)]
    fixes = [fix for table in sections if table.kind == RELOCATIONS for fix in _fixes(data, sections, table)]
    return Relocatable(data, sections, symbols, fixes)


def _symbols(data: bytes, sections: list[Section], table: Section) -> Iterator[Symbol]:
    names = sections[table.link].offset
    for at in range(table.offset, table.offset + table.size, SYMBOL.size):
        name, info, other, section, value, size = SYMBOL.unpack_from(data, at)
        end = data.index(b"\0", names + name)
        yield Symbol(data[names + name : end], info, other & 3, section, value, size)


def _fixes(data: bytes, sections: list[Section], table: Section) -> Iterator[Fix]:
    if sections[table.target].flags & ALLOCATE:
        for at in range(table.offset, table.offset + table.size, RELOCATION.size):
            offset, info, addend = RELOCATION.unpack_from(data, at)
            yield Fix(table.target, offset, info & 0xFFFFFFFF, info >> 32, addend)


class Image:
    """The shared object as it grows: an address is also an offset in the file."""

    def __init__(self, source: Relocatable) -> None:
        self.source, self.data = source, bytearray(HEAD)
        self.places: dict[int, int] = {}  # section -> address
        self.stubs: dict[int, int] = {}  # imported symbol -> its jump
        self.slots: dict[int, int] = {}  # symbol -> where its address stands
        self.loader: list[tuple[int, int, int]] = []  # relocations left to the loader

    def place(self, content: bytes, alignment: int = 8) -> int:
        """Append bytes, aligned; give their address."""
        self.data.extend(bytes(-len(self.data) % alignment))
        self.data.extend(content)
        return len(self.data) - len(content)

    def place_section(self, number: int) -> None:
        """Append a section of the object."""
        section = self.source.sections[number]
        stored = self.source.data[section.offset : section.offset + section.size]
        self.places[number] = self.place(bytes(section.size) if section.kind == ZEROS else stored, section.alignment)

    def address(self, number: int) -> int:
        """Where a symbol is; an imported one is where its jump is. Raises CannotLinkError."""
        symbol = self.source.symbols[number]
        if symbol.imported:
            return self.stubs[number]
        if symbol.section == ABSOLUTE:
            return symbol.value
        if symbol.section not in self.places:
            raise CannotLinkError(f"{symbol.name.decode()} is in no section that is loaded")
        return self.places[symbol.section] + symbol.value


def link(data: bytes) -> bytes:
    """The shared object of an object file; raises CannotLinkError."""
    source = read(data)
    image = Image(source)
    kept = source.kept
    used = {fix.symbol for fix in source.fixes}
    symbols = [n for n, symbol in enumerate(source.symbols) if symbol.exported or (symbol.imported and n in used)]
    fixed = [number for number in kept if not source.sections[number].flags & WRITE]
    for number in fixed:
        image.place_section(number)
    for number in (number for number in symbols if source.symbols[number].imported):
        image.stubs[number] = image.place(bytes(STUB), STUB)
    writable = image.place(b"", PAGE)
    for number in kept[len(fixed) :]:
        image.place_section(number)
    _place_slots(image)
    for fix in source.fixes:
        _apply(image, fix)
    return _finish(image, symbols, writable)


def _place_slots(image: Image) -> None:
    """Give a slot to what is imported, or asked for through one, and point each jump at its slot."""
    through = {fix.symbol for fix in image.source.fixes if fix.kind in GOT_RELATIVE}
    for number in sorted({*image.stubs, *through}):
        image.slots[number] = image.place(bytes(8))
        if not image.source.symbols[number].imported:
            image.loader.append((image.slots[number], BASE_RELATIVE, image.address(number)))
    for number, stub in image.stubs.items():
        struct.pack_into("<Hi", image.data, stub, 0x25FF, image.slots[number] - stub - 6)  # jmp *slot(%rip)


def _apply(image: Image, fix: Fix) -> None:
    """Do one relocation, or leave it to the loader; raises CannotLinkError for a kind that is not known."""
    place = image.places[fix.section] + fix.offset
    if fix.kind in {PC32, PLT32}:
        struct.pack_into("<i", image.data, place, image.address(fix.symbol) + fix.addend - place)
    elif fix.kind == PC64:
        struct.pack_into("<q", image.data, place, image.address(fix.symbol) + fix.addend - place)
    elif fix.kind in GOT_RELATIVE:
        struct.pack_into("<i", image.data, place, image.slots[fix.symbol] + fix.addend - place)
    elif fix.kind == ABS64 and image.source.sections[fix.section].flags & WRITE:
        image.loader.append((place, BASE_RELATIVE, image.address(fix.symbol) + fix.addend))
    else:
        raise CannotLinkError(f"a relocation of kind {fix.kind}")


def _finish(image: Image, symbols: list[int], writable: int) -> bytes:
    """Append what the loader reads, and fill in the file's head. The tables stand in the segment that is written."""
    names, table = _dynamic_symbols(image, symbols)
    rows = b"".join(RELOCATION.pack(*row) for row in image.loader)
    order = {number: row for row, number in enumerate(symbols, start=1)}
    for number in image.stubs:
        rows += RELOCATION.pack(image.slots[number], order[number] << 32 | GLOBAL_DATA, 0)
    # One bucket with every symbol in its chain: no hash is ever computed.
    last = len(symbols)
    chain = struct.pack(f"<IIII{last}I", 1, last + 1, min(1, last), 0, *[*range(2, last + 1), 0][:last])
    entries = [(4, image.place(chain)), (5, image.place(names)), (6, image.place(table)), (10, len(names)), (11, 24)]
    entries += [(7, image.place(rows)), (8, len(rows)), (9, RELOCATION.size), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    _head(image, writable, image.place(dynamic), len(dynamic))
    return bytes(image.data)


def _dynamic_symbols(image: Image, symbols: list[int]) -> tuple[bytes, bytes]:
    """The loader's string table and symbol table."""
    names, table = b"\0", bytes(SYMBOL.size)
    for number in symbols:
        symbol = image.source.symbols[number]
        value = 0 if symbol.imported else image.address(number)
        section = UNDEFINED if symbol.imported else ABSOLUTE if symbol.section == ABSOLUTE else 1
        table += SYMBOL.pack(len(names), symbol.info, 0, section, value, symbol.size)
        names += symbol.name + b"\0"
    return names, table


def _head(image: Image, writable: int, dynamic: int, size: int) -> None:
    """Write the file's header and its four program headers: code, data, dynamic section, no executable stack."""
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = identity + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, PROGRAM_HEADERS, 64, 0, 0)
    parts = (
        (1, EXECUTED, 0, writable, PAGE),
        (1, WRITTEN, writable, len(image.data) - writable, PAGE),
        (2, WRITTEN, dynamic, size, 8),
        (0x6474E551, WRITTEN, 0, 0, 16),
    )
    rows = (struct.pack("<IIQQQQQQ", kind, flags, at, at, at, n, n, align) for kind, flags, at, n, align in parts)
    image.data[:HEAD] = header + b"".join(rows)


def main(arguments: list[str]) -> None:
    """Link as `ld` is asked to: one .o among the arguments, the output after -o; the rest is of no use here."""
    objects = [argument for argument in arguments if argument.endswith(".o")]
    if len(objects) != 1 or "-o" not in arguments[:-1]:
        sys.exit("tilewise's linker: there must be one object file, and -o")
    try:
        with open(objects[0], "rb") as source:  # noqa: PTH123 - as the first lines say
            linked = link(source.read())
        with open(arguments[arguments.index("-o") + 1], "wb") as target:  # noqa: PTH123
            target.write(linked)
    except (CannotLinkError, OSError, struct.error, ValueError, IndexError) as error:
        sys.exit(f"tilewise's linker: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
