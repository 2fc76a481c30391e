//! A queue and an event as Python objects.

use std::sync::Arc;

use super::event::Event;
use super::queue::Queue;
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::native::{Dealloc, WeakList, native_class};

/// A queue as a Python object. It alone shows the queue's content to the collector.
#[derive(Debug)]
pub(super) struct QueueObject {
    pub(super) queue: Arc<Queue>,
    pub(super) weaklist: WeakList,
}

// SAFETY: the queue is made for several threads, and only the interpreter uses the list of weak references.
unsafe impl Sync for QueueObject {}

// `classes` builds the class; its instances begin with the default fields.
native_class!(unsafe QueueObject);

impl Default for QueueObject {
    fn default() -> QueueObject {
        QueueObject { queue: Arc::default(), weaklist: WeakList::new() }
    }
}

impl Traverse for QueueObject {
    fn traverse(&self, visitor: &mut Visitor) {
        self.queue.visit(visitor);
    }

    fn clear(&self) {
        self.queue.clear();
    }
}

impl Dealloc for QueueObject {
    fn weaklist(&self) -> Option<&WeakList> {
        Some(&self.weaklist)
    }
}

/// An event as a Python object. It alone shows the waiters to the collector.
#[derive(Debug)]
pub(super) struct EventObject {
    pub(super) event: Arc<Event>,
    pub(super) weaklist: WeakList,
}

// SAFETY: the event is made for several threads, and only the interpreter uses the list of weak references.
unsafe impl Sync for EventObject {}

// `classes` builds the class; its instances begin with the default fields.
native_class!(unsafe EventObject);

impl Default for EventObject {
    fn default() -> EventObject {
        EventObject { event: Arc::default(), weaklist: WeakList::new() }
    }
}

impl Traverse for EventObject {
    fn traverse(&self, visitor: &mut Visitor) {
        self.event.visit(visitor);
    }

    fn clear(&self) {
        self.event.drop_waiters();
    }
}

impl Dealloc for EventObject {
    fn weaklist(&self) -> Option<&WeakList> {
        Some(&self.weaklist)
    }
}
