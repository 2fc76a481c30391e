//! Writes JSON.

use std::fmt::{Display, Write as _};

use super::answer::{Answer, Content};
use crate::clock::monotonic_nanos;
use crate::recorder::json::push_string;

/// An object that is being written.
#[derive(Debug)]
pub(super) struct Object<'a> {
    out: &'a mut String,
    is_empty: bool,
}

/// The text of an object.
pub(super) fn text(fill: impl FnOnce(&mut Object<'_>)) -> String {
    let mut out = String::new();
    object(&mut out, fill);
    out.push('\n');
    out
}

/// A page of JSON about this process.
pub(super) fn page(fill: impl FnOnce(&mut Object<'_>)) -> Answer {
    let text = text(|page| {
        page.plain("pid", std::process::id());
        page.text("version", env!("WAKELOOP_VERSION"));
        page.seconds("time", monotonic_nanos());
        fill(page);
    });
    Answer::new(200, Content::Json, text)
}

pub(super) fn object(out: &mut String, fill: impl FnOnce(&mut Object<'_>)) {
    out.push('{');
    fill(&mut Object { out, is_empty: true });
    out.push('}');
}

impl Object<'_> {
    fn key(&mut self, name: &str) -> &mut String {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(',');
        }
        push_string(self.out, name);
        self.out.push(':');
        self.out
    }

    pub(super) fn text(&mut self, name: &str, text: &str) {
        push_string(self.key(name), text);
    }

    /// A finite number, or `true` or `false`.
    pub(super) fn plain(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.key(name), "{value}");
    }

    /// A time in nanoseconds, in seconds.
    pub(super) fn seconds(&mut self, name: &str, nanos: u64) {
        self.plain(name, nanos as f64 / 1e9);
    }

    pub(super) fn object(&mut self, name: &str, fill: impl FnOnce(&mut Object<'_>)) {
        object(self.key(name), fill);
    }

    pub(super) fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut String, T),
    ) {
        let out = self.key(name);
        out.push('[');
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            write(out, item);
        }
        out.push(']');
    }
}
