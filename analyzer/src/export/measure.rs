//! What can be counted at a call site.

use heaptape_formats::tape::SiteSums;
use std::str::FromStr;

macro_rules! measures {
    ($($variant:ident $name:literal $help:literal ($row:ident, $ended:ident) $value:expr;)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Measure { $($variant),* }

        impl Measure {
            /// All of them.
            pub const ALL: &[Measure] = &[$(Measure::$variant),*];

            /// Its name on the command line, and as DCPI's event.
            pub const fn name(self) -> &'static str {
                match self { $(Measure::$variant => $name),* }
            }

            /// What it means.
            pub const fn help(self) -> &'static str {
                match self { $(Measure::$variant => $help),* }
            }

            /// The amount at a site; `ended`: whether the process is known to be over.
            pub fn of(self, sums: &SiteSums, ended: bool) -> u64 {
                match self { $(Measure::$variant => { let ($row, $ended) = (sums, ended); let _ = $ended; $value }),* }
            }
        }
    };
}

measures! {
    AllocBytes "alloc-bytes" "bytes allocated, new sizes of resizes included" (row, ended) row.bytes;
    AllocCount "alloc-count" "blocks allocated, resizes included" (row, ended) row.allocs;
    FreeBytes "free-bytes" "of the bytes allocated here, those freed or resized away" (row, ended) row.freed_bytes;
    FreeCount "free-count" "of the blocks allocated here, those freed or resized away" (row, ended) row.frees;
    LiveBytes "live-bytes" "bytes alive at the end" (row, ended) row.bytes.saturating_sub(row.freed_bytes);
    LiveCount "live-count" "blocks alive at the end" (row, ended) row.allocs.saturating_sub(row.frees);
    PeakBytes "peak-bytes" "bytes alive when the process held most" (row, ended) row.peak_bytes;
    PeakCount "peak-count" "blocks alive when the process held most bytes" (row, ended) row.peak_blocks;
    LeakBytes "leak-bytes" "bytes alive when the process was over; none while it ran" (row, ended)
        if ended { row.bytes.saturating_sub(row.freed_bytes) } else { 0 };
    LeakCount "leak-count" "blocks alive when the process was over; none while it ran" (row, ended)
        if ended { row.allocs.saturating_sub(row.frees) } else { 0 };
}

impl Measure {
    /// Whether it counts bytes, not blocks.
    pub const fn is_bytes(self) -> bool {
        matches!(
            self,
            Measure::AllocBytes | Measure::FreeBytes | Measure::LiveBytes | Measure::PeakBytes | Measure::LeakBytes
        )
    }
}

impl FromStr for Measure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Measure::ALL.iter().copied().find(|measure| measure.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Measure::ALL.iter().map(|measure| measure.name()).collect();
            format!("'{text}' is none of {}", names.join(", "))
        })
    }
}
