//! The functions that a program calls, by the numbers of [`COLUMN_ENTRIES`](super::COLUMN_ENTRIES).

macro_rules! entries {
    ($($number:literal $name:ident $text:literal)*) => {
        /// The C or C++ function that the program called. The numbers are stored in files and never
        /// change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        #[repr(u8)]
        pub enum Entry { $($name = $number),* }

        impl Entry {
            /// Returns the entry with this number.
            pub const fn from_number(number: u8) -> Option<Entry> {
                match number { $($number => Some(Entry::$name),)* _ => None }
            }

            /// Returns the name of the function in C or C++.
            pub const fn name(self) -> &'static str {
                match self { $(Entry::$name => $text),* }
            }
        }
    };
}

entries! {
    1 Malloc "malloc" 2 Calloc "calloc" 3 Realloc "realloc" 4 Reallocarray "reallocarray" 5 PosixMemalign "posix_memalign"
    6 AlignedAlloc "aligned_alloc" 7 Memalign "memalign" 8 Valloc "valloc" 9 Pvalloc "pvalloc"
    10 New "operator new" 11 NewArray "operator new[]"
    14 AllocInside1 "allocator 1: allocate" 15 AllocInside2 "allocator 2: allocate"
    16 AllocInside3 "allocator 3: allocate" 17 AllocInside4 "allocator 4: allocate"
    18 AllocReported "reported allocation"
    20 Free "free" 21 Cfree "cfree" 22 FreeSized "free_sized" 23 FreeAlignedSized "free_aligned_sized"
    24 Delete "operator delete" 25 DeleteArray "operator delete[]"
    26 FreeInside1 "allocator 1: free" 27 FreeInside2 "allocator 2: free"
    28 FreeInside3 "allocator 3: free" 29 FreeInside4 "allocator 4: free"
    33 ResizeInside1 "allocator 1: resize" 34 ResizeInside2 "allocator 2: resize"
    35 ResizeInside3 "allocator 3: resize" 36 ResizeInside4 "allocator 4: resize"
    37 FreeReported "reported free" 38 ResizeReported "reported resize" 39 Pooled "(became a pool)"
    40 Inherited "(inherited)" 41 Implied "(implied)" 42 Carried "(carried over)" 43 InheritedEmpty "(inherited, of 0 bytes)"
    51 FreeAdded "(freed with its heap)"
}
