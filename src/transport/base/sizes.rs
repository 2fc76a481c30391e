//! Sizes of receives and sends.

/// From this size on a message is large. The next receive then goes directly into the object that the protocol gets.
pub(crate) const LARGE: usize = 32 * 1024;
/// The size of such a direct receive. It is below glibc's mmap threshold: a new object of 256 KiB would cost three
/// system calls.
pub(crate) const DIRECT: usize = 120 * 1024;
/// The size of a direct receive after one that was full. With the head of the object, it is what asyncio receives at
/// most. [`heap::keep`](super::heap::keep) raises the threshold before it is allocated.
pub(crate) const DIRECT_LONG: usize = 256 * 1024 - 64;
/// The most full reads per event, so that a fast peer does not keep the loop from other work.
pub(crate) const READS: usize = 4;
