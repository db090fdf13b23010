//! Programs for the universal canister, as `canisters/universal-c/universal.c` reads them.

use candid::Principal;

use super::imports;

/// A hook that the system runs; `HOOK` of the canister.
#[derive(Clone, Copy)]
pub(crate) enum Hook {
    InspectMessage = 0,
    PreUpgrade = 1,
    GlobalTimer = 2,
    Heartbeat = 3,
    LowMemory = 4,
}

#[derive(Clone, Default)]
pub(crate) struct Program(Vec<u8>);

/// A program that does nothing yet.
pub(crate) fn program() -> Program {
    Program::default()
}

/// A program that replies `bytes`.
pub(crate) fn reply(bytes: &[u8]) -> Program {
    program().bytes(bytes).reply()
}

/// A program that rejects with `text`.
pub(crate) fn reject(text: &str) -> Program {
    program().bytes(text.as_bytes()).split().import("msg_reject")
}

/// A program that traps through the System API.
pub(crate) fn trap(text: &str) -> Program {
    program().bytes(text.as_bytes()).split().import("trap")
}

impl Program {
    fn operation(mut self, operation: u8, constant: &[u8]) -> Self {
        self.0.push(operation);
        self.0.extend_from_slice(constant);
        self
    }

    fn sized(self, operation: u8, constant: &[u8]) -> Self {
        let size = u32::try_from(constant.len()).unwrap();
        let mut with_size = size.to_le_bytes().to_vec();
        with_size.extend_from_slice(constant);
        self.operation(operation, &with_size)
    }

    pub(crate) fn encoded(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn then(mut self, next: Self) -> Self {
        self.0.extend(next.0);
        self
    }

    /// Pushes an integer.
    pub(crate) fn int(self, value: u64) -> Self {
        self.operation(1, &value.to_le_bytes())
    }

    /// Pushes a byte string.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        self.sized(2, bytes)
    }

    /// Bytes to address and size.
    pub(crate) fn split(self) -> Self {
        self.operation(3, &[])
    }

    /// Turns a size into this number of zeros.
    pub(crate) fn room(self) -> Self {
        self.operation(5, &[])
    }

    /// The value `below` the top once more.
    pub(crate) fn copy(self, below: u8) -> Self {
        self.operation(6, &[below])
    }

    pub(crate) fn drop_top(self) -> Self {
        self.operation(7, &[])
    }

    pub(crate) fn swap(self) -> Self {
        self.operation(8, &[])
    }

    pub(crate) fn concat(self) -> Self {
        self.operation(9, &[])
    }

    pub(crate) fn eight_bytes(self) -> Self {
        self.operation(10, &[])
    }

    pub(crate) fn integer(self) -> Self {
        self.operation(11, &[])
    }

    pub(crate) fn add(self) -> Self {
        self.operation(12, &[])
    }

    pub(crate) fn equal(self) -> Self {
        self.operation(13, &[])
    }

    /// Does `body` if the integer on the top is not 0.
    pub(crate) fn when(self, body: Self) -> Self {
        self.sized(15, &body.0)
    }

    /// Does `body` as often as the integer on the top says.
    pub(crate) fn repeat(self, body: Self) -> Self {
        self.sized(16, &body.0)
    }

    /// Does the program on the top.
    pub(crate) fn run(self) -> Self {
        self.operation(17, &[])
    }

    /// Keeps the bytes on the top, for later messages.
    pub(crate) fn keep(self) -> Self {
        self.operation(18, &[])
    }

    /// Pushes what is kept.
    pub(crate) fn kept(self) -> Self {
        self.operation(19, &[])
    }

    /// Sets the body of `hook` from now on.
    pub(crate) fn hook(self, hook: Hook, body: Self) -> Self {
        self.bytes(&body.0).int(hook as u64).operation(20, &[])
    }

    /// Pushes the table index and the environment of a callback that does `body`.
    pub(crate) fn callback(self, body: Self) -> Self {
        self.bytes(&body.0).operation(21, &[])
    }

    /// Pages to the former size of memory.
    pub(crate) fn heap_grow(self) -> Self {
        self.operation(22, &[])
    }

    pub(crate) fn heap_pages(self) -> Self {
        self.operation(23, &[])
    }

    pub(crate) fn unreachable(self) -> Self {
        self.operation(24, &[])
    }

    /// The imported function of that name, with what is on the stack.
    pub(crate) fn import(self, name: &str) -> Self {
        self.operation(64 + imports::number(name), &[])
    }

    /// The imported function of that name with these integers.
    pub(crate) fn import_of(self, name: &str, arguments: &[u64]) -> Self {
        arguments.iter().fold(self, |program, value| program.int(*value)).import(name)
    }

    /// Pushes the byte string that `NAME_size` and `NAME_copy` give.
    pub(crate) fn blob(self, name: &str) -> Self {
        self.import(&format!("{name}_size"))
            .room()
            .copy(0)
            .split()
            .int(0)
            .swap()
            .import(&format!("{name}_copy"))
    }

    /// Pushes the 16 bytes that the function writes to its last parameter, an address.
    pub(crate) fn amount(self, name: &str, arguments: &[u64]) -> Self {
        let with = arguments.iter().fold(self.int(16).room(), |program, value| program.int(*value));
        with.copy(u8::try_from(arguments.len()).unwrap()).split().drop_top().import(name)
    }

    /// Replies the bytes on the top.
    pub(crate) fn reply(self) -> Self {
        self.split().import("msg_reply_data_append").import("msg_reply")
    }

    /// Appends the bytes on the top to the reply.
    pub(crate) fn append(self) -> Self {
        self.split().import("msg_reply_data_append")
    }

    /// Replies the integer on the top, in eight bytes.
    pub(crate) fn reply_int(self) -> Self {
        self.eight_bytes().reply()
    }

    /// Appends `bytes` to what is kept.
    pub(crate) fn keep_more(self, bytes: &[u8]) -> Self {
        self.kept().bytes(bytes).concat().keep()
    }

    /// Makes a call and pushes what `call_perform` returned.
    pub(crate) fn call(self, call: Call) -> Self {
        let mut program = self.begin(&call).bytes(&call.argument).split();
        program = program.import("call_data_append");
        if let Some(cleanup) = call.on_cleanup {
            program = program.callback(cleanup).import("call_on_cleanup");
        }
        if call.cycles > 0 {
            let halves = [(call.cycles >> 64) as u64, call.cycles as u64];
            program = program.import_of("call_cycles_add128", &halves);
        }
        if let Some(seconds) = call.timeout {
            program = program.import_of("call_with_best_effort_response", &[seconds.into()]);
        }
        program.import("call_perform")
    }

    /// `call_new` alone.
    pub(crate) fn begin(self, call: &Call) -> Self {
        self.bytes(call.callee.as_slice())
            .split()
            .bytes(call.method.as_bytes())
            .split()
            .callback(call.on_reply.clone())
            .callback(call.on_reject.clone())
            .import("call_new")
    }

    /// Makes a call and traps when it cannot be made.
    pub(crate) fn call_must(self, call: Call) -> Self {
        self.call(call).when(trap("the call could not be performed"))
    }
}

/// A call to another canister. Unless something else is said the caller replies what it gets: the
/// reply, or "rejected", the code in eight bytes, and the message.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) callee: Principal,
    pub(crate) method: String,
    pub(crate) argument: Vec<u8>,
    pub(crate) on_reply: Program,
    pub(crate) on_reject: Program,
    pub(crate) on_cleanup: Option<Program>,
    pub(crate) cycles: u128,
    pub(crate) timeout: Option<u32>,
}

/// Pushes "rejected", the code and the message.
pub(crate) fn rejection() -> Program {
    program()
        .bytes(b"rejected")
        .import("msg_reject_code")
        .eight_bytes()
        .concat()
        .blob("msg_reject_msg")
        .concat()
}

impl Call {
    pub(crate) fn to(callee: Principal, method: &str) -> Self {
        Self {
            callee,
            method: method.into(),
            argument: Vec::new(),
            on_reply: program().blob("msg_arg_data").reply(),
            on_reject: rejection().reply(),
            on_cleanup: None,
            cycles: 0,
            timeout: None,
        }
    }

    pub(crate) fn argument(mut self, argument: Vec<u8>) -> Self {
        self.argument = argument;
        self
    }

    /// The argument of a call to another universal canister.
    pub(crate) fn doing(self, callee: Program) -> Self {
        self.argument(callee.encoded())
    }

    pub(crate) fn on_reply(mut self, body: Program) -> Self {
        self.on_reply = body;
        self
    }

    pub(crate) fn on_reject(mut self, body: Program) -> Self {
        self.on_reject = body;
        self
    }

    pub(crate) fn on_cleanup(mut self, body: Program) -> Self {
        self.on_cleanup = Some(body);
        self
    }

    pub(crate) fn cycles(mut self, cycles: u128) -> Self {
        self.cycles = cycles;
        self
    }

    pub(crate) fn timeout(mut self, seconds: u32) -> Self {
        self.timeout = Some(seconds);
        self
    }
}
