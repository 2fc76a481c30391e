//! How much is received and sent at a time.

/// From this size on a message counts as large: the next receive goes straight to where the data is wanted.
pub(crate) const LARGE: usize = 32 * 1024;
/// The size of such a receive, below glibc's mmap threshold: a fresh 256 KiB object would cost three system calls.
pub(crate) const DIRECT: usize = 120 * 1024;
/// Full reads per event. One fast peer starves nobody.
pub(crate) const READS: usize = 4;
/// With more pending bytes than this, a write is sent at once.
pub(crate) const AT_ONCE: usize = 64 * 1024;
