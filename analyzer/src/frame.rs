//! Frames of call stacks, and what symbol tables and debug information know about an address.

use std::rc::Rc;
use std::sync::Arc;

/// A frame as reports show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Name of the function, or `None` if it is unknown.
    pub function: Option<String>,
    /// Names of other functions with the same code, which the linker has folded into this one.
    pub same_code: Option<Rc<str>>,
    /// Path of the source file.
    pub file: Option<String>,
    /// Line number, starting at 1.
    pub line: Option<u32>,
    /// Path of the module, or empty if the address is in none.
    pub module: Rc<str>,
    /// File name by which the program of the module was called, if that is a link of another name.
    pub called: Option<Arc<str>>,
    /// Link-time address in the module, or the run-time address if there is no module.
    pub offset: u64,
    /// Whether the function was inlined into that of the next frame.
    pub inlined: bool,
    /// Whether the function left by a jump to that of the next inner frame. It has no line.
    pub tail_call: bool,
    /// The role of the frame in an allocation.
    pub role: Role,
}

impl Frame {
    /// Returns the file name of the module.
    pub(crate) fn module_name(&self) -> &str {
        let path = &*self.module;
        // A library from `memfd_create` that was closed before the recorder could look, or has no
        // name.
        let is_descriptor = path.starts_with("/proc/") && path.contains("/fd/");
        match path.rsplit('/').next().unwrap_or_default() {
            _ if is_descriptor => "memfd",
            "memfd:" => "memfd",
            name => name,
        }
    }

    /// Returns the file name for reports. That of a program is the name by which it was called.
    pub(crate) fn shown_module(&self) -> &str {
        self.called.as_deref().unwrap_or_else(|| self.module_name())
    }

    /// Returns the name of the function, or `module+0xoffset`. Names of functions with the same
    /// code follow, since it may be any of them.
    pub fn title(&self) -> String {
        match (&self.function, self.shown_module()) {
            (Some(function), _) => match &self.same_code {
                Some(others) => format!("{function} (or {others}: same code)"),
                None => function.clone(),
            },
            (None, "") => format!("{:#x}", self.offset),
            (None, module) => format!("{module}+{:#x}", self.offset),
        }
    }
}

/// The role of a frame in an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Code of the program, including functions of scripts.
    #[default]
    Program,
    /// A function of a library that the system provides, e.g. libxml2. It is skipped if the stack
    /// has a named frame of the program.
    Library,
    /// Code of the program without a name, e.g. in a stripped file.
    Unnamed,
    /// Code without a name in a library that the system provides.
    UnnamedLibrary,
    /// Code of the interpreter with this name. It is skipped if the stack has a frame of the
    /// program.
    Interpreter(&'static str),
    /// An address without function and module, as in generated code.
    Nameless,
    /// A function that allocates or frees memory. What it calls is how it does that, e.g. the pool
    /// behind an `operator new`.
    Allocator,
    /// Another function that passes a request for memory on.
    Wrapper,
    /// A frame outside of the first function of the program or thread.
    Outermost,
}

impl Role {
    /// Returns the rank for blame. The frames with the lowest rank are blamed, so if a stack has no
    /// frame of the program, the library is blamed, or the interpreter.
    pub const fn rank(self) -> u8 {
        match self {
            Role::Program => 0,
            Role::Library => 1,
            Role::Unnamed => 2,
            Role::UnnamedLibrary => 3,
            Role::Interpreter(_) => 4,
            Role::Nameless => 5,
            Role::Allocator | Role::Wrapper => 6,
            Role::Outermost => 7,
        }
    }

    /// Returns whether this is code of the program, with or without a name.
    pub const fn is_program(self) -> bool {
        matches!(self, Role::Program | Role::Unnamed)
    }

    /// Returns whether this is code of a library that the system provides.
    pub const fn is_library(self) -> bool {
        matches!(self, Role::Library | Role::UnnamedLibrary)
    }
}

/// A frame in debug information.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// The symbol, or the plain name if the compiler generated no symbol.
    pub symbol: Option<String>,
    /// Path of the source file.
    pub file: Option<String>,
    /// Line in the source file.
    pub line: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionSymbol<'a> {
    /// Link-time address of the first byte.
    pub start: u64,
    /// Link-time address after the last byte.
    pub end: u64,
    /// The symbol, which may be mangled.
    pub symbol: &'a [u8],
}

/// Where a call or a jump goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jump {
    /// To the start of a function of the module.
    To(u64),
    /// To a function that the loader finds by its symbol.
    Import(Rc<[u8]>),
    /// To a function that only the run decides, such as a virtual one.
    Anywhere,
}

/// Maximum number of frames that one address expands to.
pub(crate) const MOST_INLINED: usize = 64;
