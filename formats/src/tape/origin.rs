//! How the recording of a process began.

/// How the recording of a process began. [`Origin::number`] is stored in the first record of a tape
/// ([`crate::tape::Process::origin`]), [`Origin::name`] in `recording.json`
/// ([`crate::recording::ProcessInfo::origin`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Origin {
    /// The recorder started the program.
    Start = 0,
    /// A recorded process forked it.
    Fork = 1,
    /// A recorded process executed the program, directly or through others that are not recorded.
    Exec = 2,
    /// The process attached by itself, or was taken over from another recorder.
    Attach = 3,
}

impl Origin {
    const ALL: [Origin; 4] = [Origin::Start, Origin::Fork, Origin::Exec, Origin::Attach];

    /// Returns the number in a tape.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the origin with a number; `None` for numbers of later versions.
    pub fn of_number(number: u8) -> Option<Origin> {
        Origin::ALL.into_iter().find(|origin| origin.number() == number)
    }

    /// Returns the name in `recording.json`.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Start => "start",
            Origin::Fork => "fork",
            Origin::Exec => "exec",
            Origin::Attach => "attach",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_those_of_the_format() {
        let all: Vec<_> = (0..4).filter_map(Origin::of_number).map(|origin| (origin.number(), origin.name())).collect();
        assert_eq!(all, [(0, "start"), (1, "fork"), (2, "exec"), (3, "attach")]);
        assert_eq!(Origin::of_number(4), None);
    }
}
