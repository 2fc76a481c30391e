//! How far a read is, as Python objects.

use crate::capi::buffer::bytes_from;
use crate::capi::{Raised, Ref};
use crate::runtime::net::ReadProgress;

/// Makes a `bytes` object of what was found. Nothing of the stream is borrowed afterwards, so that Python code may run.
#[inline(always)]
pub(super) fn owned(progress: ReadProgress<&[u8]>) -> Result<ReadProgress<Ref>, Raised> {
    Ok(match progress {
        ReadProgress::Item(bytes) => ReadProgress::Item(bytes_from(bytes)?),
        ReadProgress::Rest(bytes) => ReadProgress::Rest(bytes_from(bytes)?),
        ReadProgress::TooLong(item) => ReadProgress::TooLong(item),
        ReadProgress::Pending => ReadProgress::Pending,
        ReadProgress::Failed(error) => ReadProgress::Failed(error),
    })
}
