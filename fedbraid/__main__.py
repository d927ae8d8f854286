from fedbraid.cli.app import main

main()
