//! Macros for attributes of native objects that asyncio's own code reads and writes.

/// An attribute that is stored in a slot. Setting it to `None` or deleting it empties the slot.
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

/// A boolean attribute. `$taken` converts the assigned value. Deleting the attribute sets it to `False`.
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

/// A water mark of a buffer.
macro_rules! mark_attribute {
    ($kind:ty, $name:literal, |$this:ident| $mark:expr) => {
        $crate::capi::methods::Attribute::new(
            $name,
            |$this: $crate::capi::This<'_, $kind>| $mark.to_python(),
            |$this: $crate::capi::This<'_, $kind>, value: Option<$crate::capi::Borrowed<'_>>| {
                $mark.set(&value.unwrap_or($crate::capi::Borrowed::none()))
            },
        )
    };
}

pub(super) use {flag_attribute, mark_attribute, slot_attribute};
