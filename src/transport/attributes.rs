//! Rows of attribute tables: attributes of native objects that asyncio's own code reads and writes.

/// A row for a slot of the native object; `None` and deleting empty it.
macro_rules! slot_attribute {
    ($kind:ty, $name:literal, $($field:ident).+) => {
        $crate::capi::methods::Attribute::new(
            $name,
            |this: $crate::capi::This<'_, $kind>| this.$($field).+.get(),
            |this: $crate::capi::This<'_, $kind>, value: Option<$crate::capi::Borrowed<'_>>| {
                this.$($field).+.set(value.filter(|value| !value.is_none()).map(|value| value.to_owned()));
            },
        )
    };
}

/// A row for a truth value, which `$taken` makes of what is assigned; deleting it sets `False`.
macro_rules! flag_attribute {
    ($kind:ty, $name:literal, $($field:ident).+, $taken:expr) => {
        $crate::capi::methods::Attribute::new(
            $name,
            |this: $crate::capi::This<'_, $kind>| this.$($field).+.get(),
            |this: $crate::capi::This<'_, $kind>, value: Option<$crate::capi::Borrowed<'_>>| {
                value.map_or(Ok(false), $taken).map(|value| this.$($field).+.set(value))
            },
        )
    };
}

pub(super) use {flag_attribute, slot_attribute};
