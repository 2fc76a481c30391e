//! The bytes of the messages. They differ from message to message and from connection to connection, so that an answer to
//! the wrong request, a repeated one or a shifted one is noticed.
//!
//! A run makes one block of random bytes; a message is a window into it, which costs nothing. Two consecutive messages of
//! a connection, and the n-th messages of two neighbouring connections, never start at the same place.

/// Windows start at one of this many places.
const PLACES: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Pattern {
    block: Box<[u8]>,
    size: usize,
}

impl Pattern {
    /// For messages of `size` bytes. With `lines` there is no newline in the block.
    pub(super) fn new(size: usize, lines: bool) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let block = (0..PLACES + size)
            .map(|_| {
                // xorshift64: any generator that does not repeat within the block would do.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let byte = (state >> 32) as u8;
                if lines && byte == b'\n' { b'.' } else { byte }
            })
            .collect();
        Pattern { block, size }
    }

    /// The n-th message of a connection.
    pub(super) fn message(&self, connection: usize, n: u64) -> &[u8] {
        let place = (connection * 7919 + n as usize * 104_729) % PLACES;
        &self.block[place..place + self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_differ() {
        let pattern = Pattern::new(16, false);
        for n in 0..10_000 {
            assert_ne!(pattern.message(3, n), pattern.message(3, n + 1));
            assert_ne!(pattern.message(3, n), pattern.message(4, n));
        }
    }

    #[test]
    fn lines_have_no_newline_inside() {
        assert!(!Pattern::new(4096, true).block.contains(&b'\n'));
    }
}
