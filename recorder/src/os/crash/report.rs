//! The text of a report, made without allocating: what is in static memory may be used in a signal
//! handler.

/// Maximum length of a report before the functions' names, in bytes.
pub const MAX_REPORT_BYTES: usize = 24 << 10;
/// Maximum number of frames of the stack, the innermost ones.
pub const MAX_FRAMES: usize = 128;
/// Maximum number of mappings with code that are known by name.
const MAX_MODULES: usize = 48;
/// Maximum length of a module's path, in bytes.
const MAX_PATH: usize = 192;
/// Maximum length of a panic's message, in bytes.
const MAX_MESSAGE: usize = 2048;

/// Prefix of a line with a frame; the reader of [`super::names`] searches for it.
pub const FRAME: &str = "  #";

/// Text of at most `N` bytes.
#[derive(Debug)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    /// Returns a text without any bytes.
    pub const fn new() -> Self {
        Text { bytes: [0; N], length: 0 }
    }

    /// Returns the bytes that were added.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Adds bytes as they are, as many as there is space for.
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        let space = self.bytes.get_mut(self.length..).unwrap_or_default();
        let count = bytes.len().min(space.len());
        if let (Some(space), Some(bytes)) = (space.get_mut(..count), bytes.get(..count)) {
            space.copy_from_slice(bytes);
        }
        self.length += count;
        self
    }

    /// Adds text of external origin: control characters become `?`.
    pub fn put_clean(&mut self, bytes: &[u8]) -> &mut Self {
        for byte in bytes.iter().take(MAX_MESSAGE) {
            self.put(&[if byte.is_ascii_control() { b'?' } else { *byte }]);
        }
        self
    }

    /// Adds a number in decimal.
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.digits(number, 10)
    }

    /// Adds a number in hexadecimal.
    pub fn hex(&mut self, number: u64) -> &mut Self {
        self.put(b"0x").digits(number, 16)
    }

    fn digits(&mut self, mut number: u64, base: u64) -> &mut Self {
        let mut digits = [0; 20];
        let mut count = 0;
        for digit in digits.iter_mut().rev() {
            *digit = b"0123456789abcdef".get((number % base) as usize).copied().unwrap_or(b'?');
            number /= base;
            count += 1;
            if number == 0 {
                break;
            }
        }
        self.put(digits.get(digits.len() - count..).unwrap_or_default())
    }
}

impl<const N: usize> std::fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.put_clean(text.as_bytes());
        Ok(())
    }
}

/// Code of a file that is mapped.
#[derive(Clone, Copy, Debug)]
struct Module {
    start: u64,
    end: u64,
    base: u64,
    path: [u8; MAX_PATH],
    length: usize,
}

/// The mappings with code, from the lines of `/proc/self/maps`.
#[derive(Debug)]
pub struct Modules {
    list: [Module; MAX_MODULES],
    count: usize,
    /// Start address of the file whose mappings are being read.
    base: u64,
}

impl Modules {
    /// Returns a table without any mapping.
    pub const fn new() -> Modules {
        const NONE: Module = Module { start: 0, end: 0, base: 0, path: [0; MAX_PATH], length: 0 };
        Modules { list: [NONE; MAX_MODULES], count: 0, base: 0 }
    }

    /// Parses one line: `START-END RIGHTS OFFSET DEVICE INODE PATH`.
    pub fn line(&mut self, line: &[u8]) {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let mut field = || fields.next().unwrap_or_default();
        let (range, rights, offset) = (field(), field(), field());
        let (_, _, path) = (field(), field(), field());
        let path = path.trim_ascii_start();
        let mut ends = range.split(|byte| *byte == b'-').map(hex);
        let (Some(Some(start)), Some(Some(end))) = (ends.next(), ends.next()) else { return };
        if path.is_empty() {
            return;
        }
        if hex(offset) == Some(0) {
            self.base = start;
        }
        if rights.get(2) == Some(&b'x')
            && let Some(module) = self.list.get_mut(self.count)
        {
            let length = path.len().min(MAX_PATH);
            *module = Module { start, end, base: self.base, length, ..*module };
            for (to, from) in module.path.iter_mut().zip(path) {
                *to = *from;
            }
            self.count += 1;
        }
    }

    /// Returns the path of the file whose code contains an address, and the distance from the start
    /// of the file.
    pub fn find(&self, address: u64) -> Option<(&[u8], u64)> {
        let known = self.list.get(..self.count)?;
        let module = known.iter().find(|module| (module.start..module.end).contains(&address))?;
        Some((module.path.get(..module.length)?, address.checked_sub(module.base)?))
    }

    /// Returns the start address of the file with this path.
    pub fn base(&self, path: &[u8]) -> Option<u64> {
        let known = self.list.get(..self.count)?;
        known.iter().find(|module| module.path.get(..module.length) == Some(path)).map(|module| module.base)
    }
}

/// Parses `/proc/self/maps` line by line from blocks as they are read.
#[derive(Debug)]
pub struct Lines {
    line: [u8; 512],
    length: usize,
}

impl Lines {
    /// Creates a parser that has read nothing.
    pub const fn new() -> Lines {
        Lines { line: [0; 512], length: 0 }
    }

    /// Parses some bytes. The rest of a line that is too long is ignored.
    pub fn read(&mut self, bytes: &[u8], modules: &mut Modules) {
        for byte in bytes {
            if *byte == b'\n' {
                modules.line(self.line.get(..self.length).unwrap_or_default());
                self.length = 0;
            } else if let Some(slot) = self.line.get_mut(self.length) {
                *slot = *byte;
                self.length += 1;
            }
        }
    }
}

/// Parses a hexadecimal number without a prefix.
pub fn hex(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

/// Writes the frames of a stack, one a line: number, address, and path and offset of its module.
pub fn frames(text: &mut Text<MAX_REPORT_BYTES>, frames: &[u64], modules: &Modules) {
    for (number, address) in frames.iter().enumerate() {
        text.put(FRAME.as_bytes()).number(number as u64).put(b" ").hex(*address);
        if let Some((path, offset)) = modules.find(*address) {
            text.put(b" ").put_clean(path).put(b"+").hex(offset);
        }
        text.put(b"\n");
    }
    if frames.len() == MAX_FRAMES {
        text.put(b"  further frames are left out\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(fill: impl FnOnce(&mut Text<MAX_REPORT_BYTES>)) -> String {
        let mut text = Text::new();
        fill(&mut text);
        String::from_utf8_lossy(text.bytes()).into_owned()
    }

    #[test]
    fn text_is_bounded_and_clean() {
        let made = text_of(|text| {
            text.number(0).put(b" ").number(u64::MAX).put(b" ").hex(0xab0).put(b" ").put_clean(b"a\x1b[31m\nb");
        });
        assert_eq!(made, "0 18446744073709551615 0xab0 a?[31m?b");
        let long = text_of(|text| (0..2 * MAX_REPORT_BYTES).for_each(|_| _ = text.put(b"x")));
        assert_eq!(long.len(), MAX_REPORT_BYTES);
        assert_eq!(text_of(|text| _ = text.put_clean(&[b'x'; 2 * MAX_REPORT_BYTES])).len(), MAX_MESSAGE);
    }

    #[test]
    fn addresses_are_found_in_modules() {
        let maps = "1000-2000 r--p 00000000 08:01 7    /bin/a b\n2000-3000 r-xp 00001000 08:01 7    /bin/a b\n\
            3000-4000 rw-p 00000000 00:00 0 \n7000-8000 r-xp 00000000 08:01 9    /lib/c.so\nnonsense\n-\n";
        let (mut lines, mut modules) = (Lines::new(), Modules::new());
        maps.as_bytes().chunks(7).for_each(|bytes| lines.read(bytes, &mut modules));
        assert_eq!(modules.find(0x2010), Some((&b"/bin/a b"[..], 0x1010)));
        assert_eq!(modules.find(0x7000), Some((&b"/lib/c.so"[..], 0)));
        assert_eq!((modules.find(0x1010), modules.find(0x3000), modules.find(0x8000)), (None, None, None));
        assert_eq!((modules.base(b"/bin/a b"), modules.base(b"/x")), (Some(0x1000), None));
        let made = text_of(|text| frames(text, &[0x2010, 0x9000], &modules));
        assert_eq!(made, "  #0 0x2010 /bin/a b+0x1010\n  #1 0x9000\n");
        // As many as there are, of any length.
        for number in 0..1000u64 {
            let line = format!("{:x}-{:x} r-xp 0 0 0 /{}", number << 12, (number + 1) << 12, "x".repeat(400));
            modules.line(line.as_bytes());
        }
        assert_eq!(modules.count, MAX_MODULES);
    }
}
