//! A map of bounded size whose keys users choose: programs can have any name and label. When it is
//! full, the user with most entries loses the one that was not used for longest, so a user who
//! makes up names displaces only entries of that user.

use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Debug)]
struct Entry<V> {
    value: V,
    uid: u32,
    /// Number of the last use.
    used: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct FairMap<K, V> {
    entries: BTreeMap<K, Entry<V>>,
    most: usize,
    uses: u64,
}

impl<K: Ord + Clone, V: Default> FairMap<K, V> {
    /// Creates a map of at most this many entries.
    pub(crate) const fn new(most: usize) -> FairMap<K, V> {
        FairMap { entries: BTreeMap::new(), most, uses: 0 }
    }

    /// Returns the value of a key, for a change on behalf of a user, and the value that had to make
    /// room for it.
    pub(crate) fn entry(&mut self, key: K, uid: u32) -> (&mut V, Option<V>) {
        let is_new = !self.entries.contains_key(&key);
        let displaced = if is_new && self.entries.len() >= self.most { self.displace() } else { None };
        self.uses += 1;
        let entry = self.entries.entry(key).or_insert_with(|| Entry { value: V::default(), uid, used: 0 });
        entry.used = self.uses;
        (&mut entry.value, displaced)
    }

    fn displace(&mut self) -> Option<V> {
        let mut users: HashMap<u32, usize> = HashMap::new();
        self.entries.values().for_each(|entry| *users.entry(entry.uid).or_default() += 1);
        let (largest, _) = users.into_iter().max_by_key(|&(uid, count)| (count, uid))?;
        let of_user = self.entries.iter().filter(|(_, entry)| entry.uid == largest);
        let oldest = of_user.min_by_key(|(_, entry)| entry.used)?.0.clone();
        self.entries.remove(&oldest).map(|entry| entry.value)
    }

    /// Returns the entries in the order of their keys, each with the user who made it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, u32, &V)> {
        self.entries.iter().map(|(key, entry)| (key, entry.uid, &entry.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_with_most_entries_loses_the_oldest_of_them() {
        let mut map: FairMap<String, u32> = FairMap::new(10);
        for name in ["shop", "bank"] {
            *map.entry(name.into(), 0).0 += 1;
        }
        let mut displaced = 0;
        for number in 0..1000 {
            displaced += u32::from(map.entry(format!("junk{number}"), 7).1.is_some());
            if number == 500 {
                *map.entry("shop".into(), 0).0 += 1;
            }
        }
        let names: Vec<&str> = map.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!((names.len(), displaced), (10, 992));
        assert!(names.contains(&"shop") && names.contains(&"bank") && names.contains(&"junk999"), "{names:?}");
        assert!(!names.contains(&"junk1"), "{names:?}");
        assert_eq!(map.iter().find(|(name, ..)| *name == "shop").map(|(_, uid, count)| (uid, *count)), Some((0, 2)));
    }
}
