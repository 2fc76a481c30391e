//! libFuzzer with one of the targets in `wakeloop::fuzzing`, which FUZZ_TARGET names.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wakeloop::fuzzing::run(data));
