//! The array, and the mapping that it owns.

use std::{
    alloc::{Layout, handle_alloc_error},
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
};

use crate::{mappings, prefetch, spare_mapping};

/// Bytes of the processor's huge page. A mapping's length and address are multiples of it.
pub const HUGE_BYTES: usize = 2 << 20;
/// Distance behind an array's end at which `Pages::fetch_end` prefetches.
const END_BYTES: usize = 512;
/// Bytes of an ordinary page.
pub const PAGE_BYTES: usize = 4096;

/// A vector whose capacity is fixed when it is made. Its elements never move.
pub struct Pages<T> {
    base: NonNull<T>,
    len: usize,
    capacity: usize,
    _owns: PhantomData<T>,
}

// SAFETY: the array owns its elements as a `Vec` does.
unsafe impl<T: Send> Send for Pages<T> {}
// SAFETY: as above; `&Pages` gives out `&[T]` and nothing else.
unsafe impl<T: Sync> Sync for Pages<T> {}

/// Types for which all bits zero is a value.
///
/// # Safety
/// It must be one.
pub unsafe trait Zeroed: Copy {}
// SAFETY: an integer whose bits are all zero is 0.
unsafe impl Zeroed for u8 {}
// SAFETY: as above.
unsafe impl Zeroed for u32 {}
// SAFETY: as above.
unsafe impl Zeroed for u64 {}
// SAFETY: an array is its elements, without padding.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}

impl<T> Pages<T> {
    /// Makes an array without room and without memory.
    pub const fn none() -> Self {
        Self {
            base: NonNull::dangling(),
            len: 0,
            capacity: 0,
            _owns: PhantomData,
        }
    }

    /// Makes room for `capacity` elements, at least one. It takes only address space: ordinary pages come when they are written.
    pub fn with_capacity(capacity: usize) -> Self {
        let layout = Layout::array::<T>(capacity).expect("the array is smaller than the address space");
        Self::mapped(capacity).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// The `with_capacity` variant that may fail. None: the system has no memory left, or the process nearly as many mappings as it may
    /// have.
    pub fn try_with_capacity(capacity: usize) -> Option<Self> {
        mappings::has_room(1).then(|| Self::mapped(capacity)).flatten()
    }

    fn mapped(capacity: usize) -> Option<Self> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE_BYTES) };
        assert!(capacity > 0, "room for one element at least");
        let bytes = capacity.checked_mul(size_of::<T>())?;
        let base = map(bytes.checked_next_multiple_of(HUGE_BYTES)?)?;
        let pages = Self {
            base: base.cast(),
            len: 0,
            capacity,
            _owns: PhantomData,
        };
        // If the system gives huge pages to all that do not ask, the first byte would cost 2 MiB.
        pages.advise(libc::MADV_NOHUGEPAGE);
        Some(pages)
    }

    /// Makes `len` elements of zero bits, which cost no memory before they are written.
    pub fn zeroed(len: usize) -> Self
    where
        T: Zeroed,
    {
        Self::with_capacity(len).filled_with_zeros()
    }

    /// The `with_capacity` variant for an array that will be filled: it uses a huge page that was made ready ahead, if there is one.
    pub fn ready(capacity: usize) -> Self {
        Self::made_ready(capacity).unwrap_or_else(|| Self::with_capacity(capacity))
    }

    /// The `ready` variant that may fail, as `try_with_capacity` does.
    pub fn try_ready(capacity: usize) -> Option<Self> {
        Self::made_ready(capacity).or_else(|| Self::try_with_capacity(capacity))
    }

    fn made_ready(capacity: usize) -> Option<Self> {
        let bytes = capacity.checked_mul(size_of::<T>())?;
        let piece = (bytes <= HUGE_BYTES).then(spare_mapping::take).flatten()?;
        Some(Self {
            base: piece.into_base().cast(),
            len: 0,
            capacity,
            _owns: PhantomData,
        })
    }

    /// Returns the array with all of its capacity used, by elements of zero bits. No element was pushed before.
    pub fn filled_with_zeros(mut self) -> Self
    where
        T: Zeroed,
    {
        self.fill_with_zeros();
        self
    }

    /// Fills the array with zeros, as `filled_with_zeros` does.
    pub fn fill_with_zeros(&mut self)
    where
        T: Zeroed,
    {
        assert!(self.len == 0, "an array that is empty is filled");
        // The kernel gives out anonymous memory cleared, and zero bits are a value of `T`.
        self.len = self.capacity;
    }

    /// Returns the bytes of address space.
    pub fn mapped_bytes(&self) -> usize {
        if self.capacity == 0 {
            return 0;
        }
        (self.capacity * size_of::<T>())
            .next_multiple_of(HUGE_BYTES)
            .max(HUGE_BYTES)
    }

    /// Prefetches the memory of elements that will be pushed, some lines behind the last one. It never waits and changes nothing.
    #[inline]
    pub fn fetch_end(&self) {
        let ahead = self.len + END_BYTES / size_of::<T>().max(1);
        if ahead < self.capacity {
            // SAFETY: the element lies within the mapping.
            prefetch::fetch_at(unsafe { self.base.as_ptr().add(ahead) });
        }
    }

    /// Appends an element. It panics when the capacity is used up.
    #[inline]
    pub fn push(&mut self, value: T) {
        assert!(self.len < self.capacity, "the array is full");
        // SAFETY: place `len` is below the capacity, hence inside the mapping, aligned, and holds no element yet.
        unsafe { self.base.add(self.len).write(value) };
        self.len += 1;
    }

    /// Appends elements. It panics when the capacity is used up.
    #[inline]
    pub fn extend(&mut self, values: impl Iterator<Item = T>) {
        let mut len = self.len;
        for value in values {
            assert!(len < self.capacity, "the array is full");
            // SAFETY: as in `push`; should `values` panic, what was written is not dropped, and no more.
            unsafe { self.base.add(len).write(value) };
            len += 1;
        }
        self.len = len;
    }

    /// Appends an element of zero bits, without writing it. It panics when the capacity is used up.
    pub fn push_zeroed(&mut self)
    where
        T: Zeroed,
    {
        assert!(self.len < self.capacity, "the array is full");
        // No element is ever removed, so the place is as the kernel gave it: cleared.
        self.len += 1;
    }

    /// Asks for huge pages: fewer misses of the processor's address cache, but 2 MiB at the first touch of any part. A
    /// system that refuses changes nothing else.
    pub fn advise_huge(&self) {
        self.advise(libc::MADV_HUGEPAGE);
    }

    fn advise(&self, advice: libc::c_int) {
        if self.capacity == 0 {
            return;
        }
        // SAFETY: the range is the mapping made by `map`, and neither advice about page sizes changes its contents.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.mapped_bytes(), advice) };
    }
}

/// A fresh mapping of `bytes`, a multiple of `HUGE_BYTES`, at a multiple of it. None: the system has no memory left.
pub(crate) fn map(bytes: usize) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let reserved = bytes.checked_add(HUGE_BYTES)?;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe { libc::mmap(ptr::null_mut(), reserved, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start: *mut u8 = start.cast();
    let before = start.align_offset(HUGE_BYTES);
    let after = HUGE_BYTES - before;
    // SAFETY: both ends lie in the mapping just made, outside of the `bytes` that are kept, and nothing points there.
    unsafe {
        let base = start.add(before);
        if before > 0 {
            libc::munmap(start.cast(), before);
        }
        if after > 0 {
            libc::munmap(base.add(bytes).cast(), after);
        }
        mappings::count_made();
        NonNull::new(base)
    }
}

impl<T> Deref for Pages<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` elements are initialised, aligned, and ours.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Pages<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl<T> Drop for Pages<T> {
    fn drop(&mut self) {
        if self.capacity == 0 {
            return;
        }
        let elements: *mut [T] = &mut **self;
        // SAFETY: the elements are initialised and not used again; the mapping is ours alone and ends here.
        unsafe {
            ptr::drop_in_place(elements);
            libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes());
        }
        mappings::count_gone();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn elements_are_kept_and_dropped_once() {
        let shared = Arc::new(());
        let mut pages = Pages::with_capacity(3);
        pages.push(shared.clone());
        pages.push(shared.clone());
        assert_eq!((pages.len(), Arc::strong_count(&shared)), (2, 3));
        pages[0] = Arc::new(());
        assert_eq!(Arc::strong_count(&shared), 2);
        drop(pages);
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn zeroed_memory_is_zero_aligned_and_writable_to_its_end() {
        for count in [1, HUGE_BYTES / 8, HUGE_BYTES / 8 + 1] {
            let mut pages = Pages::<u64>::zeroed(count);
            pages.advise_huge();
            assert_eq!(pages.as_ptr().align_offset(HUGE_BYTES), 0);
            assert_eq!(pages.mapped_bytes(), (count * 8).next_multiple_of(HUGE_BYTES));
            assert!(pages.iter().all(|word| *word == 0));
            pages[count - 1] = 7;
            assert_eq!(pages.last(), Some(&7));
        }
        let mut pages = Pages::<[u32; 4]>::with_capacity(2);
        pages.push([7; 4]);
        pages.push_zeroed();
        assert_eq!(*pages, [[7; 4], [0; 4]]);
    }

    #[test]
    fn no_pages_hold_nothing() {
        let none = Pages::<u64>::none();
        none.advise_huge();
        none.fetch_end();
        assert_eq!((none.len(), none.mapped_bytes()), (0, 0));
    }

    /// Returns the kernel's flags of the mapping at `base`.
    fn flags_of<T>(pages: &Pages<T>) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux has smaps");
        let base = pages.base.as_ptr() as usize;
        let mut is_ours = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((low, high)) = range {
                let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
                is_ours = (number(low)..number(high)).contains(&base);
            } else if is_ours && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.to_owned();
            }
        }
        panic!("the mapping is not there");
    }

    #[test]
    fn pages_are_huge_only_when_asked_for() {
        let pages = Pages::<u64>::zeroed(8);
        let flags = flags_of(&pages);
        // A kernel without huge pages has neither flag.
        if flags.contains(" nh") {
            pages.advise_huge();
            let flags = flags_of(&pages);
            assert!(flags.contains(" hg") && !flags.contains(" nh"), "{flags}");
        } else {
            assert!(!flags.contains(" hg"), "{flags}");
        }
    }

    #[test]
    #[should_panic(expected = "the array is full")]
    fn no_more_than_the_capacity() {
        let mut pages = Pages::with_capacity(1);
        pages.push(1);
        pages.push(2);
    }
}
