//! An answer, and its bytes.

use std::fmt::Write as _;

/// The types of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Text,
    Metrics,
    Json,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) content: Content,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn new(status: u16, content: Content, body: String) -> Answer {
        Answer { status, content, body }
    }

    /// A line of text.
    pub(super) fn line(status: u16, text: &str) -> Answer {
        Answer::new(status, Content::Text, format!("{text}\n"))
    }

    /// The answer to something that was refused.
    pub(super) fn refusal(status: u16) -> Answer {
        Answer::line(status, reason(status))
    }

    pub(super) fn into_bytes(self, wants_body: bool, keeps_alive: bool) -> Vec<u8> {
        let content = match self.content {
            Content::Text => "text/plain; charset=utf-8",
            Content::Metrics => "text/plain; version=0.0.4; charset=utf-8",
            Content::Json => "application/json",
        };
        let mut head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {content}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\n",
            self.status,
            reason(self.status),
            self.body.len(),
        );
        if self.status == 405 {
            head.push_str("Allow: GET, HEAD\r\n");
        }
        let _ = write!(head, "Connection: {}\r\n\r\n", if keeps_alive { "keep-alive" } else { "close" });
        if wants_body {
            head.push_str(&self.body);
        }
        head.into_bytes()
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "HTTP Version Not Supported",
    }
}
