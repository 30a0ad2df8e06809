//! A small number for each of many blocks.

use super::references::NONE;

/// Numbers below 2^32, or [`NONE`]: in two bytes each until one does not fit. A process may have ten
/// million blocks, and most have fewer than 65,535 types.
#[derive(Debug)]
pub(crate) enum Narrow {
    Short(Vec<u16>),
    Long(Vec<u32>),
}

impl Default for Narrow {
    fn default() -> Self {
        Narrow::Short(Vec::new())
    }
}

fn short(number: u32) -> Option<u16> {
    if number == NONE { Some(u16::MAX) } else { u16::try_from(number).ok().filter(|short| *short != u16::MAX) }
}

fn long(short: u16) -> u32 {
    if short == u16::MAX { NONE } else { u32::from(short) }
}

impl Narrow {
    /// Returns this many times no number.
    pub(crate) fn none(count: usize) -> Narrow {
        Narrow::Short(vec![u16::MAX; count])
    }

    /// Returns a number; [`NONE`] behind the last one.
    pub(crate) fn get(&self, block: u32) -> u32 {
        let block = block as usize;
        match self {
            Narrow::Short(all) => all.get(block).map_or(NONE, |number| long(*number)),
            Narrow::Long(all) => all.get(block).copied().unwrap_or(NONE),
        }
    }

    /// Changes a number that is there.
    pub(crate) fn set(&mut self, block: u32, number: u32) {
        match self {
            Narrow::Short(all) => match short(number) {
                Some(number) => all[block as usize] = number,
                None => {
                    self.widen();
                    self.set(block, number);
                }
            },
            Narrow::Long(all) => all[block as usize] = number,
        }
    }

    pub(crate) fn push(&mut self, number: u32) {
        match self {
            Narrow::Short(all) => match short(number) {
                Some(number) => all.push(number),
                None => {
                    self.widen();
                    self.push(number);
                }
            },
            Narrow::Long(all) => all.push(number),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let count = match self {
            Narrow::Short(all) => all.len(),
            Narrow::Long(all) => all.len(),
        };
        (0..count as u32).map(|block| self.get(block))
    }

    fn widen(&mut self) {
        if let Narrow::Short(all) = self {
            *self = Narrow::Long(all.iter().map(|number| long(*number)).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_out_as_they_went_in(
            pushed in proptest::collection::vec(numbers(), 0..20),
            changed in proptest::collection::vec((0usize..20, numbers()), 0..20),
        ) {
            let (mut narrow, mut model) = (Narrow::default(), Vec::new());
            for number in pushed {
                narrow.push(number);
                model.push(number);
            }
            for (place, number) in changed {
                if let Some(one) = model.get_mut(place) {
                    *one = number;
                    narrow.set(place as u32, number);
                }
                prop_assert_eq!(&narrow.iter().collect::<Vec<_>>(), &model);
            }
            prop_assert_eq!(narrow.get(model.len() as u32), NONE);
        }
    }

    fn numbers() -> impl Strategy<Value = u32> {
        prop_oneof![8 => 0u32..100, 1 => Just(NONE), 1 => 65_530u32..65_540]
    }
}
