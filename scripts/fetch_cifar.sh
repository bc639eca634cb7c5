#!/bin/sh
# Downloads CIFAR-10 or CIFAR-100 from its website and unpacks it into the folder where train_vit expects it.
#
#   scripts/fetch_cifar.sh cifar10|cifar100 [FOLDER]     FOLDER: train_vit's data_dir (default datasets)
#
# An interrupted download is continued.  An archive is unpacked only if its MD5 sum is the published one.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
set -eu

home=https://www.cs.toronto.edu/~kriz
data=${1:-}
folder=${2:-datasets}

next() {
    say "$folder/$inside is complete.  Train on it, for instance with"
    say "    ./build/cpu/train_vit --config configs/cpu/ripple.ini --data $data --data-dir $folder"
}

say() { echo "fetch_cifar.sh: $*" >&2; }
fail() { say "$@"; exit 1; }

case $data in
    cifar10)
        archive=cifar-10-binary.tar.gz sum=c32a1d4ab5d03f1284b67883e8d87530
        inside=cifar-10-batches-bin files='data_batch_1.bin data_batch_2.bin data_batch_3.bin data_batch_4.bin
            data_batch_5.bin test_batch.bin' bytes=30730000 ;;
    cifar100)
        archive=cifar-100-binary.tar.gz sum=03b5dce01913d631647c71ecec9e9cb8
        inside=cifar-100-binary files='train.bin test.bin' bytes='' ;;
    *) say "usage: scripts/fetch_cifar.sh cifar10|cifar100 [FOLDER]"; exit 2 ;;
esac

# Does every file of the data set exist with its size?
all_there() {
    for file in $files; do
        want=$bytes
        case $file in train.bin) want=153700000 ;; test.bin) want=30740000 ;; esac
        have=$(wc -c 2>/dev/null < "$folder/$inside/$file") || return 1
        [ "$have" -eq "$want" ] || return 1
    done
}

md5_of() {
    if command -v md5sum >/dev/null; then md5sum < "$1" | cut -c1-32
    elif command -v md5 >/dev/null; then md5 -q "$1"
    elif command -v openssl >/dev/null; then openssl md5 -r "$1" | cut -c1-32
    else fail "none of md5sum, md5 and openssl is here to verify the download with: install coreutils"
    fi
}

download() {
    if command -v curl >/dev/null; then curl -fL --retry 3 -C - -o "$1" "$home/$archive"
    elif command -v wget >/dev/null; then wget -c -O "$1" "$home/$archive"
    else fail "neither curl nor wget is here: install one, or put $home/$archive into $folder and run this again"
    fi
}

if all_there; then
    next
    exit 0
fi
mkdir -p "$folder" || fail "$folder: cannot make the folder"
whole=$folder/$archive
part=$whole.part

# 1. The archive: an existing one, or a download.
if [ ! -f "$whole" ]; then
    if [ ! -f "$part" ] || [ "$(md5_of "$part")" != "$sum" ]; then
        say "$home/$archive -> $whole"
        download "$part" || fail "$home/$archive: the download failed (what has arrived is kept): run this again, or" \
            "without a network fetch it elsewhere and put it into $folder"
    fi
    mv "$part" "$whole"
fi

# 2. Its sum.
have=$(md5_of "$whole")
if [ "$have" != "$sum" ]; then
    mv "$whole" "$whole.damaged"
    fail "$whole: MD5 sum $have, expected $sum: kept as $archive.damaged; run this again to download it anew"
fi

# 3. Its files are moved into place only when all of them are unpacked.
unpack=$folder/$inside.unpacking
rm -rf "$unpack"
mkdir "$unpack"
tar -xzf "$whole" -C "$unpack" || fail "$whole: cannot unpack: is there room in $folder?"
mkdir -p "$folder/$inside"
mv -f "$unpack/$inside"/* "$folder/$inside"
rm -rf "$unpack"
all_there || fail "$folder/$inside: files are missing or have the wrong size: delete $whole and run this again"
rm "$whole"
next
