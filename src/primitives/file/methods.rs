//! The methods of a file that make awaitable calls.

use pyo3::prelude::*;

use super::buffered::Want;
use super::call::{Action, FileCall, Give, SEEK, read_now};
use super::class::{File, unsupported};
use crate::capi::buffer::Buffer;
use crate::capi::fallible::push;
use crate::capi::imports::support;
use crate::capi::methods::Method;
use crate::capi::raised::clear_error;
use crate::capi::{Arguments, Borrowed, Exception, Raised, Ref, This};
use crate::primitives::data::Data;

/// Raises what io raises. A closed file without a buffer raises ValueError first there. A file without a buffer looks at
/// its arguments before, one with a buffer that cannot be read does not.
fn check_readable(file: This<'_, File>, name: &str) -> Result<(), Raised> {
    match file.readable {
        true => Ok(()),
        false if file.capacity == 0 => {
            file.check_open("").and_then(|()| Err(unsupported("File not open for reading")))
        }
        false => Err(unsupported(if name == "File.read1" { "read1" } else { "read" })),
    }
}

fn check_writable(file: This<'_, File>, text: &str) -> Result<(), Raised> {
    match file.writable {
        true => Ok(()),
        false if file.capacity == 0 => {
            file.check_open("").and_then(|()| Err(unsupported("File not open for writing")))
        }
        false => Err(unsupported(text)),
    }
}

/// A size that may be left out or `None`; there is none for -1.
fn size(given: Option<Borrowed<'_>>) -> Result<Option<usize>, Raised> {
    match given.filter(|size| !size.is_none()) {
        None => Ok(None),
        Some(size) => Ok(usize::try_from(index(size)?).ok()),
    }
}

fn index(size: Borrowed<'_>) -> Result<isize, Raised> {
    if !size.is_index() {
        let text =
            format!("argument should be integer or None, not '{}'", size.type_name().to_string_lossy());
        return Err(Exception::TypeError.raise(&text));
    }
    size.to_index()
}

#[allow(clippy::useless_conversion, reason = "a C long has 32 bits on some systems")]
fn offset(given: Borrowed<'_>) -> Result<i64, Raised> {
    given.to_long().map(i64::from)
}

/// Raises what a buffered file raises that cannot be read.
fn check_buffered_reader(file: This<'_, File>, name: &str) -> Result<(), Raised> {
    if file.capacity > 0 { check_readable(file, name) } else { Ok(()) }
}

fn reading(file: This<'_, File>, name: &'static str, want: Want, give: Give) -> Result<Ref, Raised> {
    check_readable(file, name)?;
    FileCall::create(file, name, Action::Read(want, give))
}

fn read(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([], [n]) = arguments.bind("read", [], ["size"])?;
    check_buffered_reader(file, "File.read")?;
    if let Some(n) = n
        && !n.is_none()
        && index(n)? < -1
        && file.capacity > 0
    {
        return Err(Exception::ValueError.raise("read length must be non-negative or -1"));
    }
    reading(file, "File.read", size(n)?.map_or(Want::All, Want::Bytes), Give::Bytes)
}

fn read1(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([], [n]) = arguments.bind("read1", [], ["size"])?;
    check_buffered_reader(file, "File.read1")?;
    let most = n.map_or(Ok(-1), |n| n.to_ssize())?;
    let most = usize::try_from(most).unwrap_or(file.capacity.max(1));
    reading(file, "File.read1", Want::Some(most), Give::Bytes)
}

fn peek(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([], [n]) = arguments.bind("peek", [], ["size"])?;
    n.map_or(Ok(0), |n| n.to_ssize())?;
    if file.capacity == 0 {
        return Err(unsupported("peek"));
    }
    reading(file, "File.peek", Want::Some(file.capacity), Give::Peek)
}

fn readexactly(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    match size(Some(arguments.one("readexactly", "n")?))? {
        Some(n) => reading(file, "File.readexactly", Want::Exactly(n), Give::Exactly(n)),
        None => Err(Exception::ValueError.raise("readexactly size can not be less than zero")),
    }
}

fn readinto(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let buffer = arguments.one("readinto", "buffer")?;
    let length = Buffer::writable(&buffer, "readinto() argument")?.len();
    check_readable(file, "File.readinto")?;
    let action = Action::Read(Want::Bytes(length), Give::Into);
    FileCall::create_with(file, "File.readinto", action, Some(buffer.to_owned()))
}

fn readline(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([], [n]) = arguments.bind("readline", [], ["size"])?;
    let (most, give) = (size(n)?.unwrap_or(usize::MAX), Give::Bytes);
    if most == 0 && !file.is_buffered_reader() {
        // io does not ask whether the file can be read.
        return FileCall::create(file, "File.readline", Action::Read(Want::Line(0), give));
    }
    reading(file, "File.readline", Want::Line(most), give)
}

fn readlines(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([], [hint]) = arguments.bind("readlines", [], ["hint"])?;
    let want = size(hint)?.filter(|hint| *hint > 0).map_or(Want::All, Want::Lines);
    file.check_open("readlines")?;
    reading(file, "File.readlines", want, Give::Lines)
}

/// `__anext__`.
fn next(file: This<'_, File>) -> Result<Ref, Raised> {
    reading(file, "File.__anext__", Want::Line(usize::MAX), Give::Next)
}

fn pread(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([n, at], []) = arguments.bind("pread", ["n", "offset"], [])?;
    check_readable(file, "File.pread")?;
    match size(Some(n))? {
        Some(n) => FileCall::create(file, "File.pread", Action::ReadAt(n, offset(at)?)),
        None => Err(Exception::ValueError.raise("pread size can not be less than zero")),
    }
}

fn write(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let data = written(file, arguments.one("write", "data")?)?;
    FileCall::create(file, "File.write", Action::Write(data))
}

/// The content of an argument of `write`. A file without a buffer looks at it before it asks whether it can be written.
fn written(file: This<'_, File>, data: Borrowed<'_>) -> Result<Data, Raised> {
    if file.capacity > 0 {
        check_writable(file, "write")?;
    }
    let data = Data::from_python(data)?;
    check_writable(file, "write")?;
    Ok(data)
}

/// As io, it writes the lines before one that is refused, and then raises.
fn writelines(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let lines = arguments.one("writelines", "lines")?;
    file.check_open("writelines")?;
    let mut pieces = Vec::new();
    let mut refused = None;
    for line in lines.bind(lines.py()).try_iter()? {
        let piece = line.map_err(Raised::from).and_then(|line| written(file, Ref::from(line).borrow()));
        match piece {
            Ok(piece) => push(&mut pieces, piece)?,
            Err(raised) if pieces.is_empty() => return Err(raised),
            Err(raised) => {
                refused = Some(raised.take());
                break;
            }
        }
    }
    let action = Action::WriteLines(Data::joined(pieces.iter().map(Data::rest))?);
    FileCall::create_with(file, "File.writelines", action, refused)
}

fn pwrite(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([data, at], []) = arguments.bind("pwrite", ["data", "offset"], [])?;
    check_writable(file, "write")?;
    let action = Action::WriteAt(Data::from_python(data)?, offset(at)?);
    FileCall::create(file, "File.pwrite", action)
}

fn seek(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([target], [whence]) = arguments.bind("seek", ["offset"], ["whence"])?;
    let whence = whence.map_or(Ok(0), |whence| whence.to_long())?;
    let Ok(whence) = i32::try_from(whence) else {
        return Err(Exception::OverflowError.raise("Python int too large to convert to C int"));
    };
    if file.capacity > 0 && !(0..=4).contains(&whence) {
        return Err(Exception::ValueError.raise(&format!("whence value {whence} unsupported")));
    }
    file.check_open("seek")?;
    let target = offset(target).map_err(|raised| {
        // Only a file without a buffer passes the number on to the system.
        if file.capacity == 0 || !Exception::OverflowError.is_set() {
            return raised;
        }
        clear_error();
        Exception::ValueError.raise("cannot fit 'int' into an offset-sized integer")
    })?;
    FileCall::create(file, SEEK, Action::Seek(target, whence))
}

fn truncate(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([], [size]) = arguments.bind("truncate", [], ["size"])?;
    file.check_open("truncate")?;
    check_writable(file, "truncate")?;
    let size = size.filter(|size| !size.is_none()).map(offset).transpose()?;
    FileCall::create(file, "File.truncate", Action::Truncate(size))
}

/// `sendfile(transport, offset=0, count=None, *, fallback=True)`, in Python.
fn sendfile(file: This<'_, File>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let function = Ref::from(support(file.py(), "send_from_file")?);
    function.pass_on(&[file.object()], arguments)
}

/// The methods that are added to the class.
pub(super) const METHODS: &[Method<File>] = &[
    Method::fast(
        c"read",
        read,
        c"read(size=-1)\n\nRead size bytes; fewer only at the end of the file. All up to the end if size is negative or None. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"read1",
        read1,
        c"read1(size=-1)\n\nRead at least one and at most size bytes, with at most one read of the system. Empty bytes mean the end. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"peek",
        peek,
        c"peek(size=0)\n\nThe bytes that were read ahead, without moving the position; reads once if there are none. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"readexactly",
        readexactly,
        c"readexactly(n)\n\nRead n bytes. Raises asyncio.IncompleteReadError, with what there was, if the file ends before. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"readinto",
        readinto,
        c"readinto(buffer)\n\nRead into a writable bytes-like object. Awaitable; gives the number of bytes, which is less than its length only at the end of the file.",
    ).coroutine(),
    Method::fast(
        c"readline",
        readline,
        c"readline(size=-1)\n\nRead a line with its end, or its first size bytes. The last one may have no end; empty bytes mean the end of the file. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"readlines",
        readlines,
        c"readlines(hint=-1)\n\nRead all lines, or lines of more than hint bytes together. Awaitable; gives a list.",
    ).coroutine(),
    Method::fast(
        c"pread",
        pread,
        c"pread(n, offset)\n\nRead n bytes at offset; fewer only at the end of the file. Neither uses nor moves the position. Several may run at once. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"write",
        write,
        c"write(data)\n\nWrite a bytes-like object. Awaitable; gives the number of bytes, which is all of them unless the file was opened with buffering=0.",
    ).coroutine(),
    Method::fast(
        c"writelines",
        writelines,
        c"writelines(lines)\n\nWrite bytes-like objects, one after the other. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"pwrite",
        pwrite,
        c"pwrite(data, offset)\n\nWrite all of data at offset, at once. Neither uses nor moves the position. Awaitable; gives the number of bytes.",
    ).coroutine(),
    Method::fast(
        c"seek",
        seek,
        c"seek(offset, whence=0)\n\nMove the position: from the beginning, from where it is (whence=1), or from the end (2). Awaitable; gives the new position.",
    ).coroutine(),
    Method::no_args(
        c"tell",
        |file: This<'_, File>| FileCall::create(file, "File.tell", Action::Tell),
        c"tell()\n\nThe position in bytes. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"truncate",
        truncate,
        c"truncate(size=None)\n\nMake the file size bytes long, by default up to the position, which does not move. Awaitable; gives the size.",
    ).coroutine(),
    Method::no_args(
        c"flush",
        |file: This<'_, File>| FileCall::create(file, "File.flush", Action::Flush),
        c"flush()\n\nGive to the system what was written. Awaitable.",
    ).coroutine(),
    Method::no_args(
        c"fsync",
        |file: This<'_, File>| FileCall::create(file, "File.fsync", Action::Sync),
        c"fsync()\n\nFlush, and wait until the disk has all data. Awaitable.",
    ).coroutine(),
    Method::no_args(
        c"close",
        |file: This<'_, File>| FileCall::create(file, "File.close", Action::Close),
        c"close()\n\nFlush and close, after the operations that were awaited before. Closing twice is fine. The file is closed even if the flush fails. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"sendfile",
        sendfile,
        c"sendfile(transport, offset=0, count=None, *, fallback=True)\n\nSend the file to a transport, as loop.sendfile does. Afterwards the position is behind what was sent. Awaitable; gives the number of bytes.",
    ).coroutine(),
    Method::no_args(
        c"_end",
        |file: This<'_, File>| FileCall::create(file, SEEK, Action::End),
        c"_end()\n\nFlush, and find the end of the file without moving the position. Awaitable; gives the offset.",
    ).coroutine(),
    Method::no_args(
        c"_hold",
        |file: This<'_, File>| FileCall::create(file, "File._hold", Action::Hold),
        c"_hold()\n\nFlush, and keep the turn until _end_turn(). Awaitable.",
    ).coroutine(),
    Method::no_args(
        c"_turn",
        |file: This<'_, File>| FileCall::create(file, "File._turn", Action::Turn),
        c"_turn()\n\nKeep the turn until _end_turn(). Awaitable.",
    ),
    Method::no_args(
        c"_is_free",
        |file: This<'_, File>| !file.shared.is_closed() && file.shared.turn.is_free(),
        c"_is_free()\n\nWhether the file is open, and no operation is under way or waits.",
    ),
    Method::fast(
        c"_read_now",
        |file: This<'_, File>, arguments: Arguments<'_>| {
            read_now(file, usize::try_from(arguments.one("_read_now", "size")?.to_index()?).unwrap_or(0))
        },
        c"_read_now(size)\n\nRead within the turn that _turn() has taken, or return None if that would have to wait.",
    ),
    Method::one_arg(
        c"_dealloc_warn",
        |file: This<'_, File>, source: Borrowed<'_>| file.warn_unclosed(source),
        c"Issue a ResourceWarning about source, if the file is not closed.",
    ),
    Method::no_args(
        c"__aenter__",
        |file: This<'_, File>| FileCall::create(file, "File.__aenter__", Action::Enter),
        c"__aenter__()\n\nThe file itself. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"__aexit__",
        |file: This<'_, File>, _: Arguments<'_>| FileCall::create(file, "File.__aexit__", Action::Close),
        c"__aexit__(*_exception)\n\nclose(). Awaitable.",
    ).coroutine(),
    Method::no_args(
        c"__aiter__",
        |file: This<'_, File>| file.object().to_owned(),
        c"__aiter__()\n\nIterate over lines, each with its end; the last one may have none.",
    ),
    Method::no_args(c"__anext__", next, c"__anext__()\n\nThe next line. Awaitable.").coroutine(),
];
