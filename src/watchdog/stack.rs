//! A Python stack, as text.
//!
//! Names come from the program: they are escaped, so that none changes the terminal.

use std::fmt;

/// The stack is read up to this depth.
pub(super) const DEEPEST: usize = 100;

/// A frame of a stack.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) file: String,
    /// `None` if the instruction belongs to no line.
    pub(crate) line: Option<i32>,
    pub(crate) function: String,
}

/// A stack, most recent call first.
pub(crate) type Stack = Vec<Frame>;

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  File {:?}, line ", self.file)?;
        match self.line {
            Some(line) => write!(f, "{line}")?,
            None => f.write_str("???")?,
        }
        write!(f, ", in {}", self.function.escape_debug())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_written_as_in_a_traceback() {
        let frame = Frame { file: "a b.py".into(), line: Some(3), function: "C.f.<locals>.g".into() };
        assert_eq!(frame.to_string(), r#"  File "a b.py", line 3, in C.f.<locals>.g"#);
    }

    #[test]
    fn control_characters_and_text_direction_marks_are_escaped() {
        let frame = Frame { file: "\x1b[2Jü\"".into(), line: None, function: "f\r\u{9b}\u{202e}".into() };
        assert_eq!(frame.to_string(), r#"  File "\u{1b}[2Jü\"", line ???, in f\r\u{9b}\u{202e}"#);
    }
}
