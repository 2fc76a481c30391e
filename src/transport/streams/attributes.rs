//! Attributes of native objects that asyncio's own code reads and writes.

/// A row of an attribute table for a slot of the native object; `None` and deleting empty it.
macro_rules! slot_attribute {
    ($kind:ty, $name:literal, $field:ident) => {
        $crate::capi::methods::Attribute::new(
            $name,
            |this: $crate::capi::This<'_, $kind>| this.$field.get(),
            |this: $crate::capi::This<'_, $kind>, value: Option<$crate::capi::Borrowed<'_>>| {
                this.$field.set(value.filter(|value| !value.is_none()).map(|value| value.to_owned()));
            },
        )
    };
}

pub(super) use slot_attribute;
