//! Tables of metrics: a line makes the counter, its place in a snapshot, and its name, kind and help for Python.
//!
//! [`metrics!`] has two forms. The first makes a snapshot and the cells that it is read from. The second makes the
//! snapshots of parts, such as workers, and of the whole, which has the sums of the parts. A line is
//!
//! ```text
//! kind name: Type in Cell = "Help";
//! ```
//!
//! - The kind is `counter`, `gauge` or `histogram`, as monitoring systems call it.
//! - A [`Duration`] gets the suffix `_seconds` outside of Rust.
//! - `in Cell` makes a field of this name and type among the cells. Whoever counts writes to it. A value without a cell
//!   is set by the code that takes the snapshot.
//! - In the second form, a line of the whole has the expression that gives its value instead.
//!
//! So a new metric is its line, what counts it, and a field with its documentation in `python/wakeloop/metrics.py`.

use std::time::Duration;

use crate::histogram::Snapshot;

/// The description of a metric for Python and for monitoring systems.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) field: &'static str,
    pub(crate) suffix: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) help: &'static str,
}

/// The value of a metric in a snapshot.
#[derive(Debug)]
pub(crate) enum Value<'a> {
    Number(u64),
    Time(Duration),
    Histogram(&'a Snapshot),
    /// Numbers with a label each.
    Labelled(Vec<(&'static str, u64)>),
}

/// A type of the fields of snapshots.
pub(crate) trait Figure: Default {
    /// The end of the name outside of Rust.
    const SUFFIX: &'static str = "";

    fn value(&self) -> Value<'_>;
}

/// A figure whose sum over parts is that of the whole.
pub(crate) trait Sum: Figure {
    fn add(&mut self, part: &Self);
}

/// A cell that a snapshot reads.
pub(crate) trait Cell<T: Figure> {
    fn read(&self) -> T;
}

/// A snapshot.
pub(crate) trait Table {
    const METRICS: &'static [Metric];

    fn values(&self) -> impl Iterator<Item = Value<'_>>;
}

impl Metric {
    /// The name outside of Rust.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.field, self.suffix)
    }
}

impl Figure for u64 {
    fn value(&self) -> Value<'_> {
        Value::Number(*self)
    }
}

impl Figure for usize {
    fn value(&self) -> Value<'_> {
        Value::Number(*self as u64)
    }
}

impl Figure for Duration {
    const SUFFIX: &'static str = "_seconds";

    fn value(&self) -> Value<'_> {
        Value::Time(*self)
    }
}

impl Figure for Snapshot {
    fn value(&self) -> Value<'_> {
        Value::Histogram(self)
    }
}

impl Sum for u64 {
    fn add(&mut self, part: &u64) {
        *self += part;
    }
}

impl Sum for Duration {
    fn add(&mut self, part: &Duration) {
        *self += *part;
    }
}

/// Makes a snapshot with its cells, or the snapshots of parts and of a whole; see the head of this file.
macro_rules! metrics {
    // A snapshot, and the cells that it is read from.
    (
        $(#[$meta:meta])* $vis:vis struct $snapshot:ident;
        $(#[$cells_meta:meta])* $cells_vis:vis struct $cells:ident $extra:tt
        $($(#[$doc:meta])* $kind:ident $name:ident: $type:ident $(in $cell:ident)? = $help:literal;)*
    ) => {
        $crate::metrics::metrics! { @snapshot [$(#[$meta])*] $vis $snapshot {}
            $($(#[$doc])* $kind $name: $type = $help;)* }
        $crate::metrics::metrics! { @cells [$(#[$cells_meta])*] $cells_vis $cells $extra $snapshot
            $($name: $type $(in $cell)?;)* }
    };
    // The snapshots of parts, which are read from cells, and of the whole.
    (
        $(#[$meta:meta])* $vis:vis struct $part:ident;
        $(#[$cells_meta:meta])* $cells_vis:vis struct $cells:ident $extra:tt
        $(#[$whole_meta:meta])* $whole_vis:vis struct $whole:ident($($source:ident: $source_type:ty),*) {
            $(#[$parts_meta:meta])* $parts:ident,
        }
        both {
            $($(#[$doc:meta])* $kind:ident $name:ident: $type:ident $(in $cell:ident)? = $help:literal;)*
        }
        part {
            $($(#[$own_doc:meta])* $own_kind:ident $own:ident: $own_type:ident $(in $own_cell:ident)?
                = $own_help:literal;)*
        }
        whole {
            $($(#[$all_doc:meta])* $all_kind:ident $all:ident: $all_type:ident = $all_help:literal, $value:expr;)*
        }
    ) => {
        $crate::metrics::metrics! { @snapshot [$(#[$meta])*] $vis $part {}
            $($(#[$doc])* $kind $name: $type = $help;)*
            $($(#[$own_doc])* $own_kind $own: $own_type = $own_help;)* }
        $crate::metrics::metrics! { @cells [$(#[$cells_meta])*] $cells_vis $cells $extra $part
            $($name: $type $(in $cell)?;)* $($own: $own_type $(in $own_cell)?;)* }
        $crate::metrics::metrics! { @snapshot [$(#[$whole_meta])*] $whole_vis $whole
            { $(#[$parts_meta])* $whole_vis $parts: Vec<$part>, }
            $($(#[$doc])* $kind $name: $type = $help;)*
            $($(#[$all_doc])* $all_kind $all: $all_type = $all_help;)* }

        impl $whole {
            fn read($($source: $source_type,)* $parts: Vec<$part>) -> $whole {
                let mut whole = $whole::default();
                $(whole.$all = $value;)*
                for part in &$parts {
                    $($crate::metrics::Sum::add(&mut whole.$name, &part.$name);)*
                }
                whole.$parts = $parts;
                whole
            }
        }
    };
    (
        @snapshot [$($meta:tt)*] $vis:vis $snapshot:ident { $($more:tt)* }
        $($(#[$doc:meta])* $kind:ident $name:ident: $type:ident = $help:literal;)*
    ) => {
        $($meta)*
        $vis struct $snapshot {
            $(#[doc = concat!($help, ".")] $(#[$doc])* $vis $name: $type,)*
            $($more)*
        }

        impl $crate::metrics::Table for $snapshot {
            const METRICS: &'static [$crate::metrics::Metric] = &[$($crate::metrics::Metric {
                field: stringify!($name),
                suffix: <$type as $crate::metrics::Figure>::SUFFIX,
                kind: stringify!($kind),
                help: $help,
            },)*];

            fn values(&self) -> impl Iterator<Item = $crate::metrics::Value<'_>> {
                [$($crate::metrics::Figure::value(&self.$name),)*].into_iter()
            }
        }
    };
    (
        @cells [$($meta:tt)*] $vis:vis $cells:ident
        { $($(#[$extra_doc:meta])* $extra:ident: $extra_type:ident,)* } $snapshot:ident
        $($name:ident: $type:ident $(in $cell:ident)?;)*
    ) => {
        $($meta)*
        $vis struct $cells {
            $($(#[$extra_doc])* $vis $extra: $extra_type,)*
            $($($vis $name: $cell,)?)*
        }

        impl $snapshot {
            /// Reads the cells. Values without a cell are left at zero.
            fn read(cells: &$cells) -> $snapshot {
                let mut snapshot = $snapshot::default();
                $($(snapshot.$name = <$cell as $crate::metrics::Cell<$type>>::read(&cells.$name);)?)*
                snapshot
            }
        }
    };
}
pub(crate) use metrics;
