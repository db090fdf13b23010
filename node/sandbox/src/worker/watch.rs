//! Written pages as the kernel notes them, where it can: a write costs a fault inside the kernel
//! and neither a signal nor a change of protection (docs/internals/written-pages.md).
//!
//! A range that is *watched* is registered for asynchronous write protection with userfaultfd
//! (`UFFD_FEATURE_WP_ASYNC`): the first write to a page clears a bit of its page table entry and
//! continues. `PAGEMAP_SCAN` returns the pages whose bit is clear, and sets the bits again. Both
//! are in Linux 6.7 and later, and containers often forbid them. A worker finds out when it starts
//! ([`Watcher::open`]): it checks on a mapping of its own that reads are not reported and that
//! writes are, each once, and that this costs less than changing protections does. Otherwise it
//! counts by faults alone, with the same result.
//!
//! The kernel keeps the bit through reclaim, swap, migration and `mprotect`. Whatever else
//! happens to a mapping between two messages is undone by [`Watcher::protect_again`], which runs
//! before each message.
//!
//! This module knows addresses only: no heaps, limits or prices.

use std::{
    io,
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use pages::PAGE_BYTES;
use rustix::{
    fs::{Mode, OFlags, open},
    mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap},
    thread::{CapabilitySet, CapabilitySets, set_capabilities},
};

/// Requests of `ioctl` that a confined worker makes: registering a range, protecting it, and
/// reading the bits.
pub(super) const REQUESTS: [u32; 3] = [UFFDIO_REGISTER, UFFDIO_WRITEPROTECT, PAGEMAP_SCAN];

const UFFDIO_API: u32 = 0xc018_aa3f;
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_WRITEPROTECT: u32 = 0xc018_aa06;
const PAGEMAP_SCAN: u32 = 0xc060_6610;

const UFFD_API: u64 = 0xaa;
/// Faults of user code alone; needs no privilege.
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
/// Pages that are not mapped yet can be protected.
const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
/// The kernel resolves faults itself.
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1;

const PM_SCAN_WP_MATCHING: u64 = 1;
/// Refuse a range that is not watched as a whole.
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;

/// Ranges that one scan returns at most. They are on the stack, which may be that of signals.
const RANGES_PER_SCAN: usize = 64;

/// Pages and repetitions of the trial. The best of the repetitions counts.
const TRIAL_PAGES: usize = 8;
const TRIAL_REPETITIONS: usize = 12;

const PAGE: usize = PAGE_BYTES as usize;

#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdWriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<UffdApi>() == 24 && size_of::<UffdRegister>() == 32);
const _: () = assert!(size_of::<UffdWriteProtect>() == 24 && size_of::<ScanArguments>() == 96);

/// The kernel's means to note writes.
#[derive(Debug)]
pub(crate) struct Watcher {
    userfaultfd: OwnedFd,
    pagemap: OwnedFd,
}

impl Watcher {
    /// `None` where the kernel does not offer it, forbids it, gives wrong answers, or is no faster
    /// with it. Gives up the privileges of the process: with them, the descriptor of its page map
    /// would show physical addresses.
    pub(super) fn open() -> Option<Self> {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).ok()?;
        let watcher = Self::with_features().ok()?;
        watcher.is_worthwhile().ok()?.then_some(watcher)
    }

    fn with_features() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | UFFD_USER_MODE_ONLY;
        // SAFETY: makes a descriptor; no memory is involved.
        let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nothing else owns it.
        let userfaultfd = unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) };
        let features = UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED;
        let mut api = UffdApi { api: UFFD_API, features, ioctls: 0 };
        // SAFETY: the structure that the request reads and writes.
        unsafe { request(&userfaultfd, UFFDIO_API, &mut api) }?;
        let pagemap = open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { userfaultfd, pagemap })
    }

    /// Watches `addresses`, which are whole pages of private mappings: no page of it counts as
    /// written.
    pub(crate) fn watch(&self, addresses: &Range<usize>) -> io::Result<()> {
        let (start, len) = (addresses.start as u64, addresses.len() as u64);
        let mut register = UffdRegister { start, len, mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
        // SAFETY: the structure that the request reads and writes. Of the memory only bits that
        // note writes change.
        unsafe { request(&self.userfaultfd, UFFDIO_REGISTER, &mut register) }?;
        self.protect(addresses)
    }

    /// No page of `addresses`, which are watched, counts as written, whether mapped or not.
    pub(crate) fn protect(&self, addresses: &Range<usize>) -> io::Result<()> {
        let (start, len) = (addresses.start as u64, addresses.len() as u64);
        let mut protect = UffdWriteProtect { start, len, mode: UFFDIO_WRITEPROTECT_MODE_WP };
        // SAFETY: as above.
        unsafe { request(&self.userfaultfd, UFFDIO_WRITEPROTECT, &mut protect) }.map(|_| ())
    }

    /// The same at a lower price where few pages count as written and none was unmapped since.
    pub(crate) fn protect_again(&self, addresses: &Range<usize>) -> io::Result<()> {
        let mut scan = scan_of(addresses);
        scan.flags |= PM_SCAN_WP_MATCHING;
        // SAFETY: the structure that the request reads and writes; there is no room for ranges,
        // so none are written.
        unsafe { request(&self.pagemap, PAGEMAP_SCAN, &mut scan) }.map(|_| ())
    }

    /// Passes the written pages of `addresses`, which are watched as a whole, to `each`, in order.
    /// Allocates nothing and takes no lock.
    pub(crate) fn written(
        &self,
        addresses: &Range<usize>,
        mut each: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        let mut regions = [PageRegion { start: 0, end: 0, categories: 0 }; RANGES_PER_SCAN];
        let mut at = addresses.start;
        while at < addresses.end {
            let mut scan = scan_of(&(at..addresses.end));
            scan.vec = regions.as_mut_ptr() as u64;
            scan.vec_len = RANGES_PER_SCAN as u64;
            // SAFETY: the structure that the request reads and writes, and room for as many ranges
            // as it says.
            let found = unsafe { request(&self.pagemap, PAGEMAP_SCAN, &mut scan) }?;
            for region in regions.iter().take(found) {
                each(region.start as usize..region.end as usize);
            }
            let walked = scan.walk_end as usize;
            if walked <= at {
                return Err(io::Error::other("the kernel's scan of pages makes no progress"));
            }
            at = walked;
        }
        Ok(())
    }

    /// Tries it on a mapping of its own.
    fn is_worthwhile(&self) -> io::Result<bool> {
        let trial = Trial::new(TRIAL_PAGES)?;
        self.watch(&trial.addresses())?;
        if !self.notes_writes(&trial)? {
            return Ok(false);
        }
        let (mut noted, mut protected) = (Duration::MAX, Duration::MAX);
        for _ in 0..TRIAL_REPETITIONS {
            let start = Instant::now();
            self.protect_again(&trial.addresses())?;
            (0..TRIAL_PAGES).for_each(|page| trial.write(page));
            self.written(&trial.addresses(), |_| {})?;
            noted = noted.min(start.elapsed());
        }
        // The same pages, none of them watched any more.
        let trial = Trial::new(TRIAL_PAGES)?;
        (0..TRIAL_PAGES).for_each(|page| trial.write(page));
        let handler = FaultHandler::install(&trial)?;
        for _ in 0..TRIAL_REPETITIONS {
            let start = Instant::now();
            trial.protect(0..TRIAL_PAGES, MprotectFlags::READ)?;
            (0..TRIAL_PAGES).for_each(|page| trial.write(page));
            protected = protected.min(start.elapsed());
        }
        handler.restore()?;
        Ok(noted < protected)
    }

    /// Whether exactly the pages that were written are reported.
    fn notes_writes(&self, trial: &Trial) -> io::Result<bool> {
        let all = trial.addresses();
        let pages = || -> io::Result<Vec<usize>> {
            let mut pages = Vec::new();
            self.written(&all, |range| {
                pages.extend(range.step_by(PAGE).map(|address| (address - all.start) / PAGE));
            })?;
            Ok(pages)
        };
        (0..TRIAL_PAGES).for_each(|page| trial.read(page));
        let read = pages()?;
        [1, 2, 5].into_iter().for_each(|page| trial.write(page));
        let written = pages()?;
        self.protect_again(&all)?;
        let protected = pages()?;
        trial.write(2);
        (0..TRIAL_PAGES).for_each(|page| trial.read(page));
        let again = pages()?;
        trial.drop_pages()?;
        self.protect(&all)?;
        (0..TRIAL_PAGES).for_each(|page| trial.read(page));
        let dropped = pages()?;
        trial.write(7);
        let last = pages()?;
        let none: &[usize] = &[];
        Ok(read == none
            && written == [1, 2, 5]
            && protected == none
            && again == [2]
            && dropped == none
            && last == [7])
    }
}

fn scan_of(addresses: &Range<usize>) -> ScanArguments {
    ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        flags: PM_SCAN_CHECK_WPASYNC,
        start: addresses.start as u64,
        end: addresses.end as u64,
        walk_end: 0,
        vec: 0,
        vec_len: 0,
        max_pages: 0,
        category_inverted: 0,
        category_mask: PAGE_IS_WRITTEN,
        category_anyof_mask: 0,
        return_mask: PAGE_IS_WRITTEN,
    }
}

/// Makes a request, and returns its answer.
///
/// # Safety
/// `argument` is what `request` reads and writes, and what it names may be written.
unsafe fn request<T>(descriptor: &OwnedFd, request: u32, argument: &mut T) -> io::Result<usize> {
    let argument: *mut T = argument;
    // SAFETY: forwarded to the caller.
    let answer = unsafe { libc::ioctl(descriptor.as_raw_fd(), request as libc::Ioctl, argument) };
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// Some pages to try it on.
struct Trial {
    base: *mut u8,
    pages: usize,
}

impl Trial {
    fn new(pages: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choosing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), pages * PAGE, protection, flags)? };
        Ok(Self { base: base.cast(), pages })
    }

    fn addresses(&self) -> Range<usize> {
        self.base as usize..self.base as usize + self.pages * PAGE
    }

    fn write(&self, page: usize) {
        debug_assert!(page < self.pages);
        // SAFETY: within the mapping, which is writable and has no references into it.
        unsafe { self.base.add(page * PAGE).write_volatile(1) }
    }

    fn read(&self, page: usize) {
        debug_assert!(page < self.pages);
        // SAFETY: as above.
        let _: u8 = unsafe { self.base.add(page * PAGE).read_volatile() };
    }

    fn protect(&self, pages: Range<usize>, flags: MprotectFlags) -> io::Result<()> {
        debug_assert!(pages.end <= self.pages);
        // SAFETY: within the mapping, to which no reference exists.
        let protected = unsafe {
            mprotect(self.base.add(pages.start * PAGE).cast(), pages.len() * PAGE, flags)
        };
        Ok(protected?)
    }

    fn drop_pages(&self) -> io::Result<()> {
        // SAFETY: as above.
        Ok(unsafe { madvise(self.base.cast(), self.pages * PAGE, Advice::LinuxDontNeed) }?)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.cast(), self.pages * PAGE) };
    }
}

/// Addresses of the trial that counts by faults.
static FAULTS_FROM: AtomicUsize = AtomicUsize::new(0);
static FAULTS_TO: AtomicUsize = AtomicUsize::new(0);

/// Opens pages of a trial as they are written, as the handler of a message does. For the start of a
/// worker, where nothing else handles faults.
struct FaultHandler {
    before: libc::sigaction,
}

impl FaultHandler {
    fn install(trial: &Trial) -> io::Result<Self> {
        let Range { start, end } = trial.addresses();
        FAULTS_FROM.store(start, Relaxed);
        FAULTS_TO.store(end, Relaxed);
        // SAFETY: the structure is plain data, of which all zeros are a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = open_faulting_page as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        Ok(Self { before: set_fault_action(&action)? })
    }

    fn restore(self) -> io::Result<()> {
        set_fault_action(&self.before).map(|_| ())
    }
}

/// Sets what happens at a fault, and returns what happened before.
fn set_fault_action(action: &libc::sigaction) -> io::Result<libc::sigaction> {
    // SAFETY: as in `FaultHandler::install`.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both structures are valid; the handler, if it is ours, is async-signal-safe.
    match unsafe { libc::sigaction(libc::SIGSEGV, action, &mut before) } {
        0 => Ok(before),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn open_faulting_page(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid structure to a handler with `SA_SIGINFO`; the page is one
    // of the trial's mapping, which only this thread uses.
    unsafe {
        let page = (*info).si_addr() as usize & !(PAGE - 1);
        let is_ours = (FAULTS_FROM.load(Relaxed)..FAULTS_TO.load(Relaxed)).contains(&page);
        let open = libc::PROT_READ | libc::PROT_WRITE;
        if !is_ours || libc::mprotect(page as *mut libc::c_void, PAGE, open) != 0 {
            // Another fault: nothing can be reported from here.
            libc::_exit(70);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Where the kernel has none of it there is nothing to test.
    fn watcher() -> Option<Watcher> {
        Watcher::with_features().ok()
    }

    #[test]
    fn exactly_the_pages_that_are_written_are_reported() {
        let Some(watcher) = watcher() else { return };
        let trial = Trial::new(TRIAL_PAGES).unwrap();
        watcher.watch(&trial.addresses()).unwrap();
        assert!(watcher.notes_writes(&trial).unwrap());
    }

    #[test]
    fn a_scan_returns_more_ranges_than_fit_one_call() {
        let Some(watcher) = watcher() else { return };
        let trial = Trial::new(4 * RANGES_PER_SCAN).unwrap();
        let all = trial.addresses();
        watcher.watch(&all).unwrap();
        (0..4 * RANGES_PER_SCAN).step_by(2).for_each(|page| trial.write(page));
        let mut found = Vec::new();
        watcher.written(&all, |range| found.push((range.start - all.start) / PAGE)).unwrap();
        assert_eq!(found, (0..4 * RANGES_PER_SCAN).step_by(2).collect::<Vec<_>>());
    }

    #[test]
    fn a_range_that_is_not_watched_as_a_whole_is_refused() {
        let Some(watcher) = watcher() else { return };
        let trial = Trial::new(TRIAL_PAGES).unwrap();
        let all = trial.addresses();
        watcher.watch(&(all.start..all.start + PAGE)).unwrap();
        watcher.written(&all, |_| {}).unwrap_err();
        watcher.protect_again(&all).unwrap_err();
    }
}
