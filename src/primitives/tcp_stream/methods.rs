//! The methods of a stream that make awaitable calls, or iterate over them.

use pyo3::prelude::*;

use super::call::{Action, TcpStreamCall};
use super::outcome::ReadKind;
use super::stream::TcpStream;
use crate::capi::class::ClassSpec;
use crate::capi::error::no_memory;
use crate::capi::fallible::collected;
use crate::capi::methods::{Method, SelfSlot, TypeSlot};
use crate::capi::native::{self, Dealloc, native_class};
use crate::capi::{Arguments, Borrowed, Exception, Raised, Ref, Slot, This};
use crate::framing::ReadRequest;
use crate::primitives::data::Data;

/// The default limit for the length of a frame.
const MAX_FRAME: usize = 16 * 1024 * 1024;

/// An awaitable that reads an item.
fn reading(stream: This<'_, TcpStream>, name: &'static str, request: ReadRequest) -> Result<Ref, Raised> {
    TcpStreamCall::create(stream, name, Action::Read(request, ReadKind::Item))
}

/// A size in bytes; `None` for a negative one.
fn size(number: Borrowed<'_>) -> Result<Option<usize>, Raised> {
    Ok(usize::try_from(number.to_index()?).ok())
}

fn read(stream: This<'_, TcpStream>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([], [n]) = arguments.bind("read", [], ["n"])?;
    let request = match n.map_or(Ok(None), size)? {
        None => ReadRequest::All,
        // This reads nothing and waits for nothing.
        Some(0) => ReadRequest::Exact(0),
        Some(n) => ReadRequest::Some(n),
    };
    reading(stream, "TcpStream.read", request)
}

fn readexactly(stream: This<'_, TcpStream>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    match size(arguments.one("readexactly", "n")?)? {
        Some(n) => reading(stream, "TcpStream.readexactly", ReadRequest::Exact(n)),
        None => Err(Exception::ValueError.raise("readexactly size can not be less than zero")),
    }
}

fn readline(stream: This<'_, TcpStream>) -> Result<Ref, Raised> {
    TcpStreamCall::create(stream, "TcpStream.readline", Action::Read(ReadRequest::Line, ReadKind::Line))
}

fn readuntil(stream: This<'_, TcpStream>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([], [separator]) = arguments.bind("readuntil", [], ["separator"])?;
    let request = separator.map_or(Ok(ReadRequest::Line), separators)?;
    reading(stream, "TcpStream.readuntil", request)
}

/// A bytes-like object, or a tuple of them.
fn separators(given: Borrowed<'_>) -> Result<ReadRequest, Raised> {
    let separators = match given.tuple_items() {
        Some(items) => collected(items.iter().map(|item| separator(*item)))?,
        None => vec![separator(given)?],
    };
    match &separators[..] {
        [] => Err(Exception::ValueError.raise("Separator should contain at least one element")),
        [only] if **only == *b"\n" => Ok(ReadRequest::Line),
        all => {
            // An `Arc` cannot be made fallibly, so the memory for it is asked for, and given back, just before.
            Vec::<Box<[u8]>>::new().try_reserve_exact(all.len() + 1).map_err(|_| no_memory())?;
            Ok(ReadRequest::Until(separators.into()))
        }
    }
}

fn separator(given: Borrowed<'_>) -> Result<Box<[u8]>, Raised> {
    match Data::from_python(given)?.rest() {
        [] => Err(Exception::ValueError.raise("Separator should be at least one-byte string")),
        separator => {
            let mut copy = Vec::new();
            copy.try_reserve_exact(separator.len()).map_err(|_| no_memory())?;
            copy.extend_from_slice(separator);
            Ok(copy.into())
        }
    }
}

/// The limit for the length of a frame.
fn max_size(arguments: Arguments<'_>, function: &str) -> Result<usize, Raised> {
    let ([], [most]) = arguments.bind(function, [], ["max_size"])?;
    match most.map_or(Ok(Some(MAX_FRAME)), size)? {
        Some(most) => Ok(most),
        None => Err(Exception::ValueError.raise("max_size can not be less than zero")),
    }
}

fn read_frame(stream: This<'_, TcpStream>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    reading(stream, "TcpStream.read_frame", ReadRequest::Frame(max_size(arguments, "read_frame")?))
}

fn frames(stream: This<'_, TcpStream>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    iterate(stream, Some(max_size(arguments, "frames")?))
}

/// `async for` over lines or frames. It keeps the stream alive and has no state of its own.
struct Iterator {
    /// A TcpStream.
    stream: Slot,
    /// The limit for the length of a frame, if this iterates over frames.
    frames: Option<usize>,
}

// `make_iterator_type` builds the class, and `iterate` makes every instance by `native::create`.
native_class!(unsafe Iterator, collected false);

impl Dealloc for Iterator {}

fn iterate(stream: This<'_, TcpStream>, frames: Option<usize>) -> Result<Ref, Raised> {
    native::create(Iterator { stream: Slot::new(Some(stream.object().to_owned())), frames })
}

/// `__anext__`.
fn next(this: This<'_, Iterator>) -> Result<Ref, Raised> {
    let stream = this.stream.get().ok_or(Raised)?;
    let action = match this.frames {
        None => Action::Read(ReadRequest::Line, ReadKind::NextLine),
        Some(most) => Action::Read(ReadRequest::Frame(most), ReadKind::NextFrame),
    };
    stream.with_native(|stream| TcpStreamCall::create(stream, "TcpStream.__anext__", action)).ok_or(Raised)?
}

/// Makes the class of iterators. Called once, by the module's initialisation.
pub(super) fn make_iterator_type(py: Python<'_>) -> PyResult<()> {
    ClassSpec::<Iterator>::new(c"wakeloop._core.TcpStreamIterator")
        .slots(&[TypeSlot::dealloc(), TypeSlot::itself(SelfSlot::AsyncIter), TypeSlot::anext(next)])
        .build(py)
        .map(drop)
}

fn write_all(stream: This<'_, TcpStream>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let data = match (arguments.rest(0), arguments.keywords()) {
        (&[data], 0) => Data::from_python(data)?,
        (pieces, 0) => {
            let pieces = collected(pieces.iter().map(|piece| Data::from_python(*piece)))?;
            Data::joined(pieces.iter().map(Data::rest))?
        }
        _ => return Err(Exception::TypeError.raise("write_all() takes no keyword arguments")),
    };
    TcpStreamCall::create(stream, "TcpStream.write_all", Action::Write(data))
}

fn write_frame(stream: This<'_, TcpStream>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let data = Data::from_python(arguments.one("write_frame", "data")?)?;
    let Ok(len) = u32::try_from(data.rest().len()) else {
        return Err(Exception::ValueError.raise("a frame holds less than 4 GiB"));
    };
    let frame = Data::joined([&len.to_be_bytes(), data.rest()].into_iter())?;
    TcpStreamCall::create(stream, "TcpStream.write_frame", Action::Write(frame))
}

/// The methods that are added to the class.
pub(super) const METHODS: &[Method<TcpStream>] = &[
    Method::fast(
        c"read",
        read,
        c"read(n=-1)\n\nRead at least one and at most n bytes; all up to the end of the stream if n is negative. Empty bytes mean the end. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"readexactly",
        readexactly,
        c"readexactly(n)\n\nRead n bytes. Raises asyncio.IncompleteReadError, with what there was, if the stream ends before. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"readuntil",
        readuntil,
        c"readuntil(separator=b'\\n')\n\nRead up to the separator, which is included; the first to end of a tuple of separators. Raises asyncio.IncompleteReadError if the stream ends before, and asyncio.LimitOverrunError if more than the stream's limit comes before the separator; the bytes then stay and can be read otherwise. Awaitable.",
    ).coroutine(),
    Method::no_args(
        c"readline",
        readline,
        c"readline()\n\nRead a line with its end. The last one may have none; empty bytes mean the end of the stream. Raises ValueError for a line that is longer than the stream's limit, and drops it, as asyncio's readline does. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"read_frame",
        read_frame,
        c"read_frame(max_size=16777216)\n\nRead a frame: its length as four bytes, big-endian and unsigned, then so many bytes, which are returned. Raises asyncio.IncompleteReadError if the stream ends before, with partial=b'' if it ends between frames, and asyncio.LimitOverrunError if the frame is longer than max_size. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"write_all",
        write_all,
        c"write_all(*data)\n\nSend bytes-like objects, one after the other; done when the system has taken all of them. Several tasks may write: what each call sends stays in one piece. Raises BrokenPipeError or ConnectionResetError if the peer is gone. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"write_frame",
        write_frame,
        c"write_frame(data)\n\nSend data as a frame that read_frame reads. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"frames",
        frames,
        c"frames(max_size=16777216)\n\nIterate over frames (see read_frame) until the stream ends.",
    ),
    Method::no_args(
        c"__aiter__",
        |stream: This<'_, TcpStream>| iterate(stream, None),
        c"__aiter__()\n\nIterate over lines, each with its end; the last one may have none.",
    ),
];
