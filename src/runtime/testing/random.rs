//! Random numbers from a seed: SplitMix64, which gives every seed a sequence of its own.

/// A sequence of numbers that the seed determines.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns a number below `bound`, which is not 0. The bias, of `bound` in 2^64, does not matter here.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        ((u128::from(mix(self.0)) * bound as u128) >> 64) as usize
    }
}

/// Spreads every bit over the word.
pub(super) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}
