//! How a read ends in Python: with its result, or with the exception of asyncio's method of the same name.

use pyo3::exceptions::PyStopAsyncIteration;

use super::stream::TcpStream;
use crate::bridge::budget;
use crate::bridge::io_error::raise_io;
use crate::capi::coroutine::Step;
use crate::capi::inspect::integer;
use crate::capi::{Raised, Ref};
use crate::framing::{ReadRequest, TooLong, frame_length};
use crate::runtime::net::ReadProgress;
use crate::transport::streams::errors;

/// The kinds of reads. They differ in how they treat the end of the stream, and an item that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadKind {
    /// An item that the stream's end cuts short is an error. An item that is too long stays in the buffer.
    Item,
    /// The last line may have no line end. A line that is too long is dropped.
    Line,
    /// A line of an iteration, as `Line`. The end of the stream ends the iteration.
    NextLine,
    /// A frame of an iteration, as `Item`. The end of the stream ends the iteration.
    NextFrame,
}

/// Ends the read; `None` if it has to wait.
#[inline(always)]
pub(super) fn conclude(
    stream: &TcpStream,
    progress: ReadProgress<Ref>,
    request: &ReadRequest,
    kind: ReadKind,
) -> Result<Option<Step>, Raised> {
    match progress {
        ReadProgress::Item(bytes) => {
            budget::spend_item(len(&bytes));
            Ok(Some(Step::Done(bytes)))
        }
        ReadProgress::Pending => Ok(None),
        ReadProgress::Rest(bytes) => rest(bytes, request, kind).map(Some),
        ReadProgress::TooLong(item) => Err(too_long(stream, item, request, kind)),
        ReadProgress::Failed(error) => Err(raise_io(&error)),
    }
}

fn len(bytes: &Ref) -> usize {
    bytes.exact_bytes().map_or(0, <[u8]>::len)
}

/// The result of a read if the stream has ended before the item.
#[cold]
fn rest(bytes: Ref, request: &ReadRequest, kind: ReadKind) -> Result<Step, Raised> {
    if matches!(kind, ReadKind::NextLine | ReadKind::NextFrame) && len(&bytes) == 0 {
        return Err(PyStopAsyncIteration::new_err(()).into());
    }
    let expected = match request {
        ReadRequest::Some(_) | ReadRequest::All => return Ok(Step::Done(bytes)),
        ReadRequest::Line if kind != ReadKind::Item => return Ok(Step::Done(bytes)),
        ReadRequest::Line | ReadRequest::Until(_) => Ref::none(),
        ReadRequest::Exact(expected) => integer(*expected as i64)?,
        ReadRequest::Frame(_) => integer(frame_length(bytes.exact_bytes().unwrap_or_default()) as i64)?,
    };
    Err(errors::incomplete(&bytes, &expected))
}

#[cold]
fn too_long(stream: &TcpStream, item: TooLong, request: &ReadRequest, kind: ReadKind) -> Raised {
    match (request, kind) {
        (ReadRequest::Frame(most), _) => {
            let len = item.consumed;
            errors::overrun(&format!("a frame of {len} bytes is longer than the limit of {most}"), len)
        }
        (_, ReadKind::Line | ReadKind::NextLine) => {
            stream.discard(item);
            errors::line_too_long(item)
        }
        _ => errors::item_too_long(item),
    }
}
