//! Writes JSON text.

use std::fmt::Write as _;

/// Appends a string with its quotes. Whatever it has, the result is one JSON string that is printable ASCII and UTF-8:
/// control characters, escape sequences of terminals included, become `\u` escapes.
pub(crate) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            _ if char.is_control() || matches!(char, '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            _ => out.push(char),
        }
    }
    out.push('"');
}

/// Appends a time in microseconds, which trace viewers expect.
pub(super) fn push_micros(out: &mut String, nanos: u64) {
    let _ = write!(out, "{}.{:03}", nanos / 1000, nanos % 1000);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_escaped() {
        let json = |text| {
            let mut out = String::new();
            push_string(&mut out, text);
            out
        };
        assert_eq!(json(""), r#""""#);
        assert_eq!(json("a\"b\\c"), r#""a\"b\\c""#);
        assert_eq!(json("\n\t\0\u{1b}[31m\u{7f}\u{9b}"), r#""\u000a\u0009\u0000\u001b[31m\u007f\u009b""#);
        assert_eq!(json("a\u{2028}é\u{1f600}"), "\"a\\u2028é\u{1f600}\"");
    }

    #[test]
    fn times_have_three_decimals() {
        let mut out = String::new();
        for nanos in [0, 7, 1_000, 123_456_789] {
            push_micros(&mut out, nanos);
            out.push(' ');
        }
        assert_eq!(out, "0.000 0.007 1.000 123456.789 ");
    }
}
