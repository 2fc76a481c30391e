//! The fuzz targets that `make fuzz-coverage` runs; see `tests/fuzz/__main__.py`.
//!
//! A target compares what the source does with a naive model, for any input. It panics where they differ. Some targets
//! have their model in Python: the function `check` of the module of that name in `tests/fuzz`. It raises.
//!
//! All of this is compiled with `cfg(wakeloop_fuzz)` only. `cargo fuzz` sets `fuzzing` for every crate of a program,
//! and a published crate does not have these files.

pub(crate) mod python;

use std::sync::LazyLock;

static TARGET: LazyLock<fn(Input<'_>)> =
    LazyLock::new(|| match std::env::var("FUZZ_TARGET").unwrap_or_default().as_str() {
        "framing" => crate::runtime::net::fuzz::run,
        "bio" => crate::libssl::bio::fuzz::run,
        "recorder" => crate::recorder::fuzz::run,
        "sockaddr" => |input| python::check("sockaddr", (input.0,)),
        "streams" => |input| python::check("streams", (input.0,)),
        "window" => crate::window::fuzz::run,
        other => panic!("FUZZ_TARGET is {other:?}, which is no target"),
    });

/// Runs the target that FUZZ_TARGET names.
pub fn run(data: &[u8]) {
    TARGET(Input(data));
}

/// The rest of the fuzzer's bytes. After their end, zeros come.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte().is_multiple_of(2)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.bytes(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    /// At most so many bytes.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Some bytes, which may be repeated so often that buffers have to grow.
    pub(crate) fn piece(&mut self) -> Vec<u8> {
        let (length, times) = (self.byte(), self.one_of(&[1, 1, 1, 1, 2, 20, 600, 2000]));
        self.bytes(length.into()).repeat(times)
    }
}
