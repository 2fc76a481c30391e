//! Errors of connecting and binding that name the address, in asyncio's words.

use std::io;

use crate::bridge::awaitable::Outcome;
use crate::bridge::io_error::told;

/// A host, as the program has given it, and a port.
#[derive(Debug)]
pub(super) struct Address(String);

impl Address {
    pub(super) fn new(host: Option<&str>, port: u16) -> Address {
        Address(match host {
            Some(host) => format!("('{host}', {port})"),
            None => format!("(None, {port})"),
        })
    }

    /// The outcome of a connect that has failed.
    pub(super) fn not_connected(self, error: io::Error) -> Outcome {
        Outcome::Error(told(error, |_| format!("Connect call failed {}", self.0)))
    }

    /// The outcome of a bind that has failed.
    pub(super) fn not_bound(self, error: io::Error) -> Outcome {
        Outcome::Error(told(error, |error| {
            let text = error.to_string();
            let reason = text.split(" (os error").next().unwrap_or_default().to_lowercase();
            format!("error while attempting to bind on address {}: {reason}", self.0)
        }))
    }
}
