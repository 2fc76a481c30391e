//! The names of callbacks and tasks. An event has the number of a name, and the name itself is kept once.
//!
//! Whoever names an object gives a *key*: 64 bits of hash of everything that the name is made of, such as the hash that
//! Python keeps in a string. So no object is kept alive, and it does not matter that another object gets the address of
//! one that has died: objects with the same name share the key, and others have another.
//!
//! There are two tables of names. When the new one is full, it takes the place of the old one, whose names are
//! forgotten. So a program whose tasks all have different names needs no more memory with time, and the name of an event
//! is known until [`MOST`] further names have come at least.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

/// How many names a table has at most.
const MOST: usize = 1 << 13;
/// How many keys are found without the lock.
const CACHED: usize = 1 << 11;
/// The bits of the number of a name.
const NUMBER_BITS: u32 = 24;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// No name has this number.
pub(crate) const UNNAMED: u64 = 0;

/// What an event was about, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) text: String,
    /// The category, as trace viewers have it: "callback" or "task".
    pub(crate) category: &'static str,
    /// More about it, such as the module of a function.
    pub(crate) details: Vec<(&'static str, String)>,
}

/// All names.
#[derive(Debug)]
pub(crate) struct Names {
    /// By the low bits of the key: its high bits, and the number of its name.
    cache: Box<[AtomicU64; CACHED]>,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    numbers: HashMap<u64, u64>,
    new: Table,
    old: Table,
    /// Names that are forgotten, and dropped a few at a time, so that no event takes long.
    forgotten: Vec<Arc<Name>>,
}

#[derive(Debug, Default)]
struct Table {
    /// The number of its first name; the others follow.
    first: u64,
    names: Vec<Arc<Name>>,
}

impl Table {
    fn get(&self, number: u64) -> Option<&Arc<Name>> {
        // Numbers begin again at 1.
        let place = if number < self.first { number + NUMBER - self.first } else { number - self.first };
        self.names.get(place as usize)
    }

    fn next(&self) -> u64 {
        (self.first + self.names.len() as u64 - 1) % NUMBER + 1
    }
}

impl Names {
    pub(crate) fn new() -> Names {
        let new = Table { first: 1, names: Vec::new() };
        let tables = Tables { new, ..Tables::default() };
        Names { cache: Box::new([const { AtomicU64::new(0) }; CACHED]), tables: Mutex::new(tables) }
    }

    /// The number of the name with this key. `make` makes the name if it is new.
    #[inline(always)]
    pub(crate) fn number(&self, key: u64, make: impl FnOnce() -> Name) -> u64 {
        let cached = self.place(key).load(Relaxed);
        if (cached ^ key) >> NUMBER_BITS == 0 { cached & NUMBER } else { self.find(key, make) }
    }

    #[inline(always)]
    fn place(&self, key: u64) -> &AtomicU64 {
        &self.cache[key as usize % CACHED]
    }

    #[cold]
    #[inline(never)]
    fn find(&self, key: u64, make: impl FnOnce() -> Name) -> u64 {
        // A thread that reads the names holds the lock: the loop does not wait for it.
        let known = |tables: &Tables| {
            let number = tables.numbers.get(&key).copied()?;
            // With the lock: when a table is full, no thread puts an old number back that was taken out of the cache.
            self.place(key).store(key & !NUMBER | number, Relaxed);
            Some(number)
        };
        match self.try_tables().map(|tables| known(&tables)) {
            Some(Some(number)) => return number,
            Some(None) => {}
            None => return UNNAMED,
        }
        // Made without the lock, because this may take some time.
        let name = make();
        let Some(mut tables) = self.try_tables() else { return UNNAMED };
        // Another loop may have made it meanwhile, if there is no GIL.
        if let Some(number) = known(&tables) {
            return number;
        }
        if tables.new.names.len() == MOST {
            self.begin_table(&mut tables);
        }
        let kept = tables.forgotten.len().saturating_sub(2);
        tables.forgotten.truncate(kept);
        let number = tables.new.next();
        tables.new.names.push(Arc::new(name));
        tables.numbers.insert(key, number);
        known(&tables).unwrap_or(number)
    }

    fn begin_table(&self, tables: &mut Tables) {
        let first = tables.new.next();
        let old = std::mem::replace(&mut tables.new, Table { first, names: Vec::new() });
        tables.forgotten = std::mem::replace(&mut tables.old, old).names;
        tables.numbers.clear();
        self.cache.iter().for_each(|place| place.store(0, Relaxed));
    }

    fn try_tables(&self) -> Option<MutexGuard<'_, Tables>> {
        self.tables.try_lock().ok()
    }

    /// The names with these numbers, as far as they are known.
    pub(crate) fn get(&self, numbers: HashSet<u64>) -> HashMap<u64, Arc<Name>> {
        let Ok(tables) = self.tables.lock() else { return HashMap::new() };
        let get = |number| tables.new.get(number).or_else(|| tables.old.get(number)).cloned();
        numbers.into_iter().filter_map(|number| Some((number, get(number)?))).collect()
    }
}

/// A well mixed hash of two.
#[inline(always)]
pub(crate) fn mix(one: u64, other: u64) -> u64 {
    // The finalizer of splitmix64, one round of it.
    let mixed = (one.rotate_left(23) ^ other).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name { text: text.to_owned(), category: "callback", details: Vec::new() }
    }

    fn text(names: &Names, number: u64) -> Option<String> {
        names.get(HashSet::from([number])).get(&number).map(|name| name.text.clone())
    }

    fn key(number: u64) -> u64 {
        mix(number, 7)
    }

    #[test]
    fn a_name_is_made_once_and_found_by_its_number() {
        let names = Names::new();
        let one = names.number(key(1), || name("one"));
        let two = names.number(key(2), || name("two"));
        assert_ne!(one, two);
        for _ in 0..3 {
            assert_eq!(names.number(key(1), || unreachable!()), one);
            assert_eq!(names.number(key(2), || unreachable!()), two);
        }
        assert_eq!((text(&names, one).unwrap(), text(&names, two).unwrap()), ("one".into(), "two".into()));
        assert_eq!((text(&names, UNNAMED), text(&names, 3)), (None, None));
    }

    #[test]
    fn keys_that_share_a_place_in_the_cache_have_their_own_names() {
        let names = Names::new();
        let (one, other) = (5 | 1 << 40, 5 | 1 << 50);
        let number = names.number(one, || name("one"));
        assert_eq!(text(&names, names.number(other, || name("other"))).unwrap(), "other");
        assert_eq!(names.number(one, || unreachable!()), number);
    }

    #[test]
    fn names_are_forgotten_only_after_a_table_of_others() {
        let names = Names::new();
        let numbers: Vec<u64> =
            (0..3 * MOST as u64).map(|n| names.number(key(n), || name(&n.to_string()))).collect();
        let last = *numbers.last().unwrap();
        assert_eq!(text(&names, last).unwrap(), (3 * MOST - 1).to_string());
        assert_eq!(text(&names, numbers[MOST]).unwrap(), MOST.to_string());
        assert_eq!(text(&names, numbers[MOST - 1]), None);
        // A name of the old table that is needed again is made again.
        let again = names.number(key(MOST as u64), || name("again"));
        assert_eq!(text(&names, again).unwrap(), "again");
    }

    #[test]
    fn numbers_begin_again_at_one() {
        let names = Names::new();
        names.tables.lock().unwrap().new.first = NUMBER - 1;
        let numbers: Vec<u64> = (0..4).map(|n| names.number(key(n), || name(&n.to_string()))).collect();
        assert_eq!(numbers, [NUMBER - 1, NUMBER, 1, 2]);
        for (n, number) in numbers.into_iter().enumerate() {
            assert_eq!(text(&names, number).unwrap(), n.to_string());
        }
    }

    #[test]
    fn a_name_that_is_new_while_another_thread_reads_is_left_out_and_made_later() {
        let names = Names::new();
        let reading = names.tables.lock().unwrap();
        assert_eq!(names.number(key(1), || name("one")), UNNAMED);
        drop(reading);
        let number = names.number(key(1), || name("one"));
        assert_eq!(text(&names, number).unwrap(), "one");
    }
}
